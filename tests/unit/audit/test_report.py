"""An audit's report: what is missing first, everything escaped, nobody's text unless it is asked for."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from ops.audit.asked import Asked, Audited, Scope, Where, verdict
from ops.audit.page import COUNTS, page
from ops.audit.report import INVARIANTS, Stretch, chronicle_of, document
from ops.audit.single import audit_partition
from ops.audit.violations import Findings, Tally, Verdict, Violation
from ops.cli.audit import told
from ops.cli.common import told_time
from ops.cli.narrate import sentence
from ops.replay.target import Target
from streams.core.content import Frame
from streams.core.events import ConversationErased, Entry, TurnCommitted
from tests.support.histories import one_partition
from tests.support.journals import CONVERSATION, Journal, ready, taken_over

pytestmark = pytest.mark.unit

MANY = 150

NASTY = "<script>alert('x')</script>"
FOUND = Violation(invariant=4, partition=0, lsn=7, conversation=CONVERSATION, problem=f"two answers {NASTY}")


def quiet(_: str) -> None:
    """No progress wanted."""


def found(*violations: Violation) -> Findings:
    findings = Findings()
    for violation in violations:
        findings.add(violation)
    return findings


async def reported(
    entries: list[Entry],
    *,
    findings: Findings | None = None,
    unchecked: tuple[int, ...] = (),
    gone: int = 0,
    **stretch: Any,
) -> dict[str, Any]:
    history = one_partition(entries)
    history.delete_before(0, gone)
    asked = Stretch(partitions=(0,), **stretch)
    told = await chronicle_of(history, asked, sentence, quiet)
    answer = Verdict(Tally(events=len(entries)), findings or Findings(), unchecked)
    return document(asked, answer, "", [], told, identity="topic-1")


async def test_who_had_a_run_from_when_to_when_is_told_along_its_moves() -> None:
    journal = taken_over()
    report = await reported(journal.entries)
    [told] = report["conversations"]
    lanes = told["lanes"]
    assert [lane["run_epoch"] for lane in lanes] == [1, 2]
    assert lanes[0]["outcome"].startswith("moved")
    assert lanes[1]["outcome"] == "answered"
    assert lanes[0]["member"] != lanes[1]["member"]
    assert told["moves"] == 1


async def test_what_is_missing_is_the_first_line_and_the_verdict_the_next() -> None:
    report = await reported(ready().entries, gone=12)
    assert next(iter(report)) == "missing"
    html = page(report, told_time)
    assert html.index("History is missing") < html.index("Every promise holds")
    assert "offsets 0 to 11" in html


async def test_violations_are_listed_by_promise() -> None:
    html = page(await reported(taken_over().entries, findings=found(FOUND)), told_time)
    assert "1 violation<" in html
    assert html.count("✗") == 1


async def test_many_violations_of_one_promise_do_not_hide_that_another_is_broken() -> None:
    gaps = [Violation(invariant=1, partition=0, lsn=lsn, conversation=None, problem="gap") for lsn in range(MANY)]
    both = found(*gaps)
    both.join(found(*gaps, FOUND))
    html = page(await reported(taken_over().entries, findings=both), told_time)
    assert "✗ 300 violations" in html
    assert "✗ 1 violation<" in html
    assert "two answers" in html


async def test_what_could_not_be_checked_is_not_said_to_hold() -> None:
    html = page(await reported(taken_over().entries, unchecked=(10, 11, 12)), told_time)
    assert html.count("✓ holds") == len(INVARIANTS) - 3
    assert "Every promise holds" not in html
    assert "10, 11, 12" in html


def said(text: str) -> Journal:
    journal = ready()
    journal.say(text)
    return journal


async def test_text_is_shown_only_where_it_is_asked_for() -> None:
    journal = said("my secret is tulip")
    journal.frame(journal.owner)
    masked = page(await reported(journal.entries), told_time)
    assert "tulip" not in masked
    assert "(18 characters)" in masked
    assert "tulip" in page(await reported(journal.entries, show_text=True), told_time)


async def test_what_was_said_in_an_erased_conversation_is_shown_to_nobody() -> None:
    """Though nobody had sealed it, and though the report ends before it was erased."""
    entries = list(said("my secret is tulip").entries)
    erased = ConversationErased("op", "asked", "e", conversation_id=CONVERSATION, seq=2)
    entries.append(msgspec.structs.replace(entries[-1], lsn=entries[-1].lsn + 1, event=erased))
    for stretch in ({}, {"conversation": CONVERSATION}, {"until": Target(offset=len(entries) - 2)}):
        shown = page(await reported(entries, show_text=True, **stretch), told_time)
        assert "tulip" not in shown
        assert "[erased]" in shown


def streamed(*texts: str) -> Journal:
    """A turn that its owner answers in these pieces, and with what is of no stream between them."""
    journal = said("hello")
    for number, text in enumerate(texts, start=1):
        data = json.dumps({"type": "text", "content": text})
        done = number == len(texts)
        piece = Frame(id=f"p{number}", type="genui", data=data, stream_id="s", done=done, client_id=f"p{number}")
        journal.frame(journal.owner, frame=piece)
        if number == 1:
            journal.frame(journal.owner, "tool_call")
    return journal


async def test_a_streamed_answer_is_one_line_with_its_pieces_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("Three ", "months <b>", "& a day.")
    journal = streamed(*texts)
    for show_text, words in ((True, "Three months <b>& a day."), (False, "(24 characters)")):
        made = await reported(journal.entries, show_text=show_text)
        [told] = made["conversations"]
        lines = [line for line in told["timeline"] if "genui" in line["words"]]
        [line] = lines
        assert line["words"].endswith(f": {words}")
        assert (line["lsn"], line["pieces_left_out"]) == (line["pieces"][0]["lsn"], 0)
        assert [piece["words"].endswith(text.strip()) for piece, text in zip(line["pieces"], texts, strict=True)] == [
            show_text
        ] * 3
        assert "in 3 pieces, until" in page(made, told_time)
    monkeypatch.setattr("ops.audit.streamed.PIECES_MOST", 2)
    made = await reported(journal.entries, show_text=True)
    html = page(made, told_time)
    assert "in 3 pieces, until" in html
    assert "1 later piece not listed" in html
    Balanced().feed(html)
    [told] = (await reported(streamed("at once").entries))["conversations"]
    assert not [line for line in told["timeline"] if "pieces" in line], "of one piece there is nothing to fold"


@pytest.mark.parametrize("count", [1, 2])
async def test_what_is_counted_is_said_as_people_say_it(count: int) -> None:
    made = await reported(said("hello").entries)
    for name in COUNTS:
        made["verdict"][name] = count
    html = page(made, told_time)
    takeovers = "takeover" if count == 1 else "takeovers"
    assert f"<b>{count}</b><span>{takeovers}</span><small>runs that another member took over" in html
    assert f" {count} {takeovers} ({count} continued)" in told(made["verdict"])
    assert set(COUNTS) == {*Tally.__slots__} - {"events"}, "each count has its tile"


async def test_everything_that_somebody_wrote_is_escaped() -> None:
    journal = said(NASTY)
    entries = []
    for entry in journal.entries:
        event = entry.event
        if isinstance(event, TurnCommitted):
            turn = msgspec.structs.replace(event.turn, sender=NASTY)
            assigned = tuple(msgspec.structs.replace(each, member=NASTY, group=NASTY) for each in event.assigned)
            event = msgspec.structs.replace(event, turn=turn, assigned=assigned)
        entries.append(msgspec.structs.replace(entry, event=event))
    html = page(await reported(entries, findings=found(FOUND), show_text=True), told_time)
    assert "<script" not in html
    assert "&lt;script&gt;" in html


class Balanced(HTMLParser):
    """Fails on tags that are closed in another order than they were opened, and on any address outside."""

    VOID = frozenset({"meta", "line", "rect", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {name for name, _ in attrs} & {"src", "href", "onclick"}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


async def test_the_file_needs_nothing_else_and_its_tags_are_balanced() -> None:
    html = page(await reported(taken_over().entries), told_time)
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not re.search(r"https?://|@import|url\(", html)


async def test_a_stretch_is_told_of_alone() -> None:
    journal = taken_over()
    whole = await reported(journal.entries)
    part = await reported(journal.entries, since=Target(offset=6), until=Target(offset=8))
    assert sum(part["events"].values()) == 3 < sum(whole["events"].values())


async def test_only_so_many_conversations_are_told_of_those_that_moved_first() -> None:
    journal = taken_over()
    journal.open("quiet")
    report = await reported(journal.entries, limit=1)
    assert [told["conversation"] for told in report["conversations"]] == [CONVERSATION]
    assert report["conversations_left_out"] == 1


async def test_an_archive_alone_says_what_it_leaves_unchecked_also_to_another_process() -> None:
    asked = Asked(None, Scope(), Where(archive="/unused", offline=True))
    audited = await audit_partition(one_partition(taken_over().entries), asked, 0, quiet)
    assert audited.unchecked == (10, 11, 12)
    assert "invariants 10, 11 and 12" in " ".join(audited.notes)
    again = Audited.of(json.loads(json.dumps(audited.document())))
    assert again == audited
    told: list[str] = []
    both = verdict(Scope(), [audited, again], told.append)
    assert (both.ok, both.unchecked, len(told)) == (True, (10, 11, 12), 1)
