"""An audit's report: verdict, what is missing, timelines, ownership, refusals, as one document."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ops.audit.chronicle import Chronicle, Told
from ops.audit.violations import Verdict
from ops.history import History, Missing, Range
from ops.history.erased import erased_in
from ops.replay.target import Target

INVARIANTS: Final = {
    1: "Numbers of partitions and conversations are without gap or repeat",
    2: "Writer epochs never go back, and each is opened",
    3: "Deciding again from members and routes gives every recorded owner",
    4: "One holder of a run at a time, and at most one answer that counts",
    5: "No turn is lost: each is answered, open, or ended with a reason",
    6: "Nothing that was refused as fenced is visible",
    7: "An idempotency key is stored once",
    9: "A replay gives the same state, whatever the split",
    10: "Checkpoints are states of a replay, and never ahead of the journal",
    11: "Intake is consumed if, and only if, its outcome is in the journal",
    12: "Log time never goes back, and moves with its writer's ticks alone",
}
"""Those of the design's section 10 that are checked from the log."""


ALL: Final = Target()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What a report is of. The verdict is of the whole partitions, the rest of what lies between the two points."""

    partitions: Sequence[int]
    conversation: str | None = None
    since: Target = ALL
    until: Target = ALL
    limit: int = 50
    """Conversations that are told of, at most: those with moves and refusals first."""
    show_text: bool = False


async def chronicle_of(
    history: History, stretch: Stretch, sentence: Callable[[Any], str], notify: Callable[[str], None]
) -> tuple[Chronicle, list[dict[str, int]]]:
    """What happened, and what is missing of it.

    A whole journal is read twice: to see which conversations are worth telling of, and to tell of them.
    """
    of, show_text = stretch.conversation, stretch.show_text
    chosen = {of} if of is not None else set()
    erased: set[str] = set()
    missing: list[dict[str, int]] = []
    for partition in stretch.partitions:
        gone = await history.missing(partition)
        if show_text:  # wherever they are erased, in what is told or behind it
            erased |= await erased_in(history, partition, gone)
        missing += [{"partition": partition, "from": each.start, "to": each.end - 1} for each in gone]
    chronicle = Chronicle(sentence, of=of, chosen=chosen, show_text=show_text, erased=erased)
    await _read(history, stretch, chronicle, notify)
    if of is None:
        chosen = {told.id for told in ranked(chronicle)[: stretch.limit]}
        again = Chronicle(sentence, of=None, chosen=chosen, show_text=show_text, erased=erased)
        await _read(history, stretch, again, notify)
        chronicle.conversations |= {name: each for name, each in again.conversations.items() if name in chosen}
    return chronicle, missing


async def _read(history: History, stretch: Stretch, chronicle: Chronicle, notify: Callable[[str], None]) -> None:
    for partition in stretch.partitions:
        notify(f"reading partition {partition}")
        wanted = await _between(history, partition, stretch)
        while len(wanted):
            try:
                async for chunk in history.read(partition, wanted.start, wanted.end):
                    for recorded, entry in zip(chunk, history.decode_all(chunk), strict=True):
                        chronicle.see(partition, recorded, entry)
                break
            except Missing as hole:  # it is in `missing`: tell of what lies behind it
                wanted = Range(hole.gone.end, wanted.end)
    chronicle.settle()


def ranked(chronicle: Chronicle) -> Sequence[Told]:
    """Its conversations, those that are worth telling of first."""
    return sorted(chronicle.conversations.values(), key=_weight, reverse=True)


async def _between(history: History, partition: int, stretch: Stretch) -> Range:
    bounds = await history.bounds(partition)
    start, end = bounds.start, bounds.end
    since, until = stretch.since, stretch.until
    if since.time_ms is not None:
        found = await history.offset_at(partition, since.time_ms)
        start = end if found is None else found
    elif since.offset is not None:
        start = max(start, since.offset)
    if until.time_ms is not None:
        found = await history.offset_at(partition, until.time_ms + 1)
        end = end if found is None else found
    elif until.offset is not None:
        end = min(end, until.offset + 1)
    return Range(start, max(start, end))


def document(
    stretch: Stretch,
    verdict: Verdict | None,
    why_not: str,
    notes: Sequence[str],
    told: tuple[Chronicle, list[dict[str, int]]],
    *,
    identity: str,
) -> dict[str, Any]:
    """The whole report, what is missing first. `verdict` None: it could not be verified, for the reason `why_not`."""
    chronicle, missing = told
    found = ranked(chronicle)
    shown = found[: stretch.limit]
    return {
        "missing": missing,
        "verdict": None if verdict is None else verdict.document(),
        "could_not_verify": why_not or None,
        "notes": list(notes),
        "invariants": [
            {
                "invariant": number,
                "promise": promise,
                "violations": None if verdict is None else verdict.findings.by_invariant.get(number, 0),
                "unchecked": verdict is not None and number in verdict.unchecked,
            }
            for number, promise in INVARIANTS.items()
        ],
        "made_at": round(time.time() * 1000),
        "journal": identity,
        "partitions": list(stretch.partitions),
        "conversation": stretch.conversation,
        "from": chronicle.first,
        "to": chronicle.last,
        "text_shown": stretch.show_text,
        "events": dict(sorted(chronicle.events.items())),
        "conversations": [_conversation(each) for each in shown],
        "conversations_left_out": len(found) - len(shown),
        "refusals": chronicle.refusals,
        "refusals_total": chronicle.refused,
        "members": list(chronicle.members.values()),
        "writers": chronicle.writers,
    }


def _weight(told: Told) -> tuple[int, int, int]:
    return told.weight


def _conversation(told: Told) -> dict[str, Any]:
    return {
        "conversation": told.id,
        "partition": told.partition,
        "from": told.first,
        "to": told.last,
        "turns": told.turns,
        "moves": told.moves,
        "refusals": told.refusals,
        "lanes": told.lanes,
        "timeline": told.lines,
        "timeline_left_out": told.left_out,
    }
