"""Why a turn went to whom: told from the members of that moment, and held against what was decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ops.audit.explain import explain
from ops.cli.audit import explained_lines
from streams.core.commands import ApplyConfig
from streams.core.events import Entry, TurnCommitted
from streams.core.ownership import weight
from tests.support.histories import one_partition
from tests.support.journals import CONVERSATION, DOCUMENT, Journal, ready, taken_over

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


async def explained(entries: list[Entry], seq: int | None = None) -> dict[str, Any]:
    document = await explain(one_partition(entries), CONVERSATION, seq)
    assert document is not None
    return document


async def test_the_scores_of_all_members_are_told_the_winner_first() -> None:
    journal = ready()
    journal.say()
    [turn] = (await explained(journal.entries))["turns"]
    [given] = turn["given"]
    scores = {each["member"]: each["score"] for each in given["candidates"]}
    assert scores == {member: weight(CONVERSATION, member).hex() for member in ("gw-1.1", "gw-1.2")}
    assert given["candidates"][0]["member"] == given["owner"] == journal.owner
    assert "2 counted" in given["words"]
    assert scores[journal.owner] in given["words"]


async def test_a_senders_clock_that_is_off_is_told_with_both_times() -> None:
    journal = ready()
    [entry, *_] = journal.say()
    said = entry.event
    assert isinstance(said, TurnCommitted)
    ahead = entry.timestamp + 5 * 3_600_000
    turn = msgspec.structs.replace(said.turn, client_at=ahead)
    journal.entries[-1] = msgspec.structs.replace(entry, event=msgspec.structs.replace(said, turn=turn))
    [told] = (await explained(journal.entries))["turns"]
    assert (told["timestamp"], told["client_at"]) == (entry.timestamp, ahead)
    assert told["words"] == ["its sender's clock was 18,000 s ahead of the broker's; the order is the log's"]


async def test_a_member_that_drains_does_not_count_and_is_told_so() -> None:
    journal = ready()
    journal.drain("gw-1.1")
    journal.say()
    [turn] = (await explained(journal.entries))["turns"]
    [given] = turn["given"]
    drained = next(each for each in given["candidates"] if each["member"] == "gw-1.1")
    assert (drained["counts"], drained["why_not"], given["owner"]) == (False, "drains", "gw-1.2")
    assert "the only one of 2" in given["words"]


async def test_what_moved_a_run_is_told_with_who_there_was_then() -> None:
    document = await explained(taken_over().entries, 1)
    [turn] = document["turns"]
    moved = next(each for each in turn["since"] if each["event"] == "RunMoved")
    assert moved["from"] != moved["member"]
    assert [each["member"] for each in moved["candidates"]] == [moved["member"]]
    assert "begun anew by" in moved["words"]
    assert turn["since"][-1]["words"].startswith("answered")
    assert any(moved["words"] in line for line in explained_lines(document))


async def test_who_owned_the_turn_before_is_told_where_it_was_another() -> None:
    journal = ready()
    journal.say()
    before = journal.owner
    journal.leave(before)
    journal.say("again")
    document = await explained(journal.entries, 2)
    [turn] = document["turns"]
    assert turn["given"][0]["previous"] in {before, None}
    assert document["now"]["next"] == {"agents/bots": journal.owner}


def forged(journal: Journal) -> list[Entry]:
    """The journal with its turn given to the other member."""
    entries = []
    for entry in journal.entries:
        event = entry.event
        if isinstance(event, TurnCommitted):
            other = msgspec.structs.replace(event.assigned[0], member=journal.other(journal.owner))
            event = msgspec.structs.replace(event, assigned=(other,))
        entries.append(msgspec.structs.replace(entry, event=event))
    return entries


async def test_a_choice_that_the_rules_do_not_give_is_not_explained_away() -> None:
    journal = ready()
    journal.say()
    [turn] = (await explained(forged(journal)))["turns"]
    assert turn["given"][0]["words"].startswith("NOT EXPLAINED")


async def test_a_conversation_that_is_not_there_has_no_explanation() -> None:
    assert await explain(one_partition(ready().entries), "nobody", None) is None


async def test_a_member_that_just_joined_is_named_as_whom_the_next_turn_may_be_given_to() -> None:
    """An idle partition's log time stands still: the member counts once anything is written there."""
    journal = ready()
    journal.say()
    best = max(weight(CONVERSATION, member) for member in ("gw-1.1", "gw-1.2"))
    newcomer = next(name for number in range(3, 99) if weight(CONVERSATION, name := f"gw-1.{number}") > best)
    settling = DOCUMENT.replace('"group_settle_ms": 0', '"group_settle_ms": 1000')
    journal.take(ApplyConfig(at=journal.at, timestamp=journal.at, version=2, document=settling))
    journal.join(newcomer)
    document = await explained(journal.entries)
    assert document["now"]["next"]["agents/bots"] == journal.owner
    assert [each["member"] for each in document["soon"]] == [newcomer]
    assert any(f"or to {newcomer} of agents/bots" in line for line in explained_lines(document))
