"""Rows of the tables: the same for any split, any decoder, and after a state was put away and taken up again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.core.commands import CommitPersonFrame, HandBack, HandOver
from streams.core.events import (
    ConversationErased,
    ConversationOpened,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    Turn,
    TurnCommitted,
)
from streams.core.fold import step
from streams.core.state import Partition
from streams.runtime.codec import Codec
from tests.support import journals
from tests.support.command_sequences import seeded_commands
from turnlog.data.decoding import Decoder
from turnlog.data.fold import Fold
from turnlog.data.state import State
from turnlog.data.tables import BY_NAME, TABLES, arrow

CODEC = Codec()


def rows_of(entries: list[Any], table: str) -> list[dict[str, Any]]:
    fold = Fold(0)
    for offset, entry in enumerate(entries):
        fold.take(offset, entry)
    found: list[dict[str, Any]] = arrow(BY_NAME[table], fold.drain()[table]).to_pylist()
    return found


def seeded(seed: int, length: int = 300) -> list[Entry]:
    state = Partition(0)
    return [entry for command in seeded_commands(seed, length) for entry in step(state, command, 1)]


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_the_same_for_any_split_and_after_a_state_was_kept_as_bytes(seed: int) -> None:
    entries = seeded(seed)
    whole = Fold(3)
    for offset, entry in enumerate(entries):
        whole.take(offset, entry)
    expected = whole.drain()
    parts = {table.name: [] for table in TABLES}  # type: ignore[var-annotated]
    fold = Fold(3)
    for start in range(0, len(entries), 7):
        for offset, entry in enumerate(entries[start : start + 7], start):
            fold.take(offset, entry)
        for name, rows in fold.drain().items():
            parts[name] += rows
        fold = Fold(3, msgspec.msgpack.decode(msgspec.msgpack.encode(fold.state), type=State))
    assert parts == expected
    assert expected["turns"] or expected["membership"]
    for table in TABLES:
        assert arrow(table, expected[table.name]).validate(full=True) is None


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20)
def test_an_outsiders_decoder_gives_the_same_rows_as_the_sequencers_own_entries(seed: int) -> None:
    entries = seeded(seed, 60)
    decoder = Decoder()
    ours, theirs = Fold(0), Fold(0)
    for offset, entry in enumerate(entries):
        ours.take(offset, entry)
        theirs.take(offset, decoder.entry(CODEC.encode_entry(entry)))
    a, b = ours.drain(), theirs.drain()
    for table in TABLES:
        assert arrow(table, a[table.name]).equals(arrow(table, b[table.name]))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20)
def test_what_is_open_in_the_log_is_open_in_the_fold(seed: int) -> None:
    state = Partition(0)
    fold = Fold(0)
    offset = 0
    for command in seeded_commands(seed, 80):
        for entry in step(state, command, 1):
            fold.take(offset, entry)
            offset += 1
    live = {run.id: run.member for c in state.conversations.values() for run in c.runs.values()}
    assert {run_id: run.member for run_id, run in fold.open_runs()} == live


def test_a_run_that_was_taken_over_says_so() -> None:
    [run] = rows_of(journals.taken_over().entries, "runs")
    assert (run["outcome"], run["takeovers"], run["continued"], run["run_epoch"]) == ("answered", 1, 0, 2)
    assert run["first_member"] != run["member"]
    [run] = rows_of(journals.continued().entries, "runs")
    assert (run["takeovers"], run["continued"], run["frames"]) == (1, 1, 3)


def test_latencies_are_counted_from_the_turn() -> None:
    journal = journals.ready()
    journal.say()
    journal.at += 30
    journal.frame(journal.owner, "run", status="started")
    journal.at += 50
    journal.frame(journal.owner)
    journal.at += 20
    journal.frame(journal.owner, "run", status="finished")
    [run] = rows_of(journal.entries, "runs")
    assert (run["wait_ms"], run["first_frame_ms"], run["latency_ms"]) == (0, 80, 100)
    assert (run["started_at"] - run["turn_at"]).total_seconds() == 0.03


def test_tokens_are_summed_where_frames_say_them() -> None:
    journal = journals.ready()
    journal.say()
    journal.frame(journal.owner, "run", status="started")
    entries = [*journal.entries]
    for usage in ({"input_tokens": 10, "output_tokens": 2}, {"prompt_tokens": 5, "completion_tokens": 1}):
        for entry in journal.frame(journal.owner):
            event: Event = entry.event
            if isinstance(event, FrameCommitted):
                frame = msgspec.structs.replace(event.frame, metadata=json.dumps({"model": "m", "usage": usage}))
                event = msgspec.structs.replace(event, frame=frame)
            entries.append(msgspec.structs.replace(entry, event=event))
    entries += journal.frame(journal.owner, "run", status="finished")
    [run] = rows_of(entries, "runs")
    assert (run["tokens_in"], run["tokens_out"]) == (15, 3)
    [run] = rows_of(journals.answered().entries, "runs")
    assert (run["tokens_in"], run["tokens_out"]) == (None, None)


def test_a_conversation_has_a_row_for_each_change_of_its_life() -> None:
    journal = journals.answered()
    stamp: dict[str, Any] = {"at": journal.at, "timestamp": journal.at, "conversation_id": journals.CONVERSATION}
    journal.take(HandOver(**stamp, by="op", to="eve", reason="angry", id="u-1"))
    journal.take(HandBack(**stamp, by="eve", reason="", id="u-2"))
    rows = rows_of(journal.entries, "conversations")
    assert [(row["version"], row["status"], row["handed_to"]) for row in rows] == [
        (1, "open", None),
        (2, "handed_over", "eve"),
        (3, "open", None),
    ]
    assert rows[-1]["turns"] == 1
    assert {row["conversation_channel"] for row in rows} == {"web"}


def test_an_erased_conversation_says_so_and_tells_of_nobody() -> None:
    journal = journals.answered()
    last = journal.entries[-1]
    erased = ConversationErased(conversation_id=journals.CONVERSATION, seq=9, by="op", reason="asked", id="u-9")
    rows = rows_of([*journal.entries, Entry(last.lsn + 1, last.at, last.timestamp, 1, erased)], "conversations")
    assert [(row["status"], row["participant"], row["last_seq"]) for row in rows][-1] == ("erased", None, 9)


def test_an_edited_turn_has_a_second_row_and_its_runs_count_from_the_wish() -> None:
    journal = journals.answered()
    journal.at += 1_000
    said = next(entry.event for entry in journal.entries if isinstance(entry.event, TurnCommitted))
    journal.take(of_person(journal, "edit", {"messageId": said.turn.id}, "hello again"))
    rows = rows_of(journal.entries, "turns")
    assert [(row["seq"], row["edition"], row["text"]) for row in rows] == [(1, 0, "hello"), (1, 1, "hello again")]
    fold = Fold(0)
    for offset, entry in enumerate(journal.entries):
        fold.take(offset, entry)
    [(_, run)] = fold.open_runs()
    assert run.turn_at == journal.at


def of_person(journal: journals.Journal, type_: str, extra: dict[str, Any], text: str) -> CommitPersonFrame:
    frame = Frame(id="p-1", type=type_, extra=json.dumps(extra), text=text, client_id="p-1")
    return CommitPersonFrame(
        at=journal.at,
        timestamp=journal.at,
        ref="p",
        conversation_id=journals.CONVERSATION,
        frame=frame,
        sender="ana",
        channel="web",
    )


def test_rows_name_what_began_before_they_were_read_as_not_known() -> None:
    entries = journals.answered().entries
    first = next(n for n, entry in enumerate(entries) if isinstance(entry.event, FrameCommitted))
    [run] = rows_of(entries[first:], "runs")
    assert (run["turn_at"], run["latency_ms"], run["turn_seq"], run["outcome"]) == (None, None, 1, "answered")


def test_times_are_utc_and_a_client_time_may_be_missing() -> None:
    turn = Turn(id="m", sender="ana", channel="web", type="text", client_at=1_700_000_000_123)
    entries = [
        Entry(1, 5, 1_700_000_000_000, 1, ConversationOpened(conversation_id="c", channel="web")),
        Entry(2, 5, 1_700_000_000_001, 1, TurnCommitted(conversation_id="c", seq=1, turn=turn)),
    ]
    [row] = rows_of(entries, "turns")
    assert row["client_at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert row["committed_at"].isoformat() == "2023-11-14T22:13:20.001000+00:00"
