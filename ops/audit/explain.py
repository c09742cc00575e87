"""Why a member owned a turn: who there was, since when, what the hash gave each, and what moved it since.

The state just before each decision is folded again; what is told of a choice is computed from it, not read from what
was decided, so that a choice that cannot be explained is seen as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ops.audit.violations import SKEW_MS
from ops.history import History
from ops.replay.shown import conversation_document
from ops.replay.target import Target
from ops.replay.travel import Standing, Traveller
from streams.core.events import (
    Entry,
    FrameCommitted,
    OwnerChanged,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStarted,
    TurnCommitted,
    TurnUnassigned,
)
from streams.core.ownership import owner_of, weight
from streams.core.state import Partition
from streams.runtime.partitioning import partition_of

HASH: Final = "rendezvous-1"
"""See `streams.core.ownership`: the highest 8-byte BLAKE2b of conversation and member wins."""

DRAINS: Final = "drains"


class Explainer:
    """Is shown the entries of a partition, and explains the turns of one conversation (`seq` None: all of them)."""

    def __init__(self, standing: Standing, conversation: str, seq: int | None) -> None:
        self._standing = standing
        self._conversation = conversation
        self._seq = seq
        self.turns: dict[int, dict[str, Any]] = {}
        self._of_run: dict[str, dict[str, Any]] = {}
        self._changes: dict[str, OwnerChanged] = {}

    def see(self, entry: Entry) -> None:
        """The next entry; the state is still the one before it."""
        event = entry.event
        if event.conversation_id != self._conversation:
            return
        if isinstance(event, OwnerChanged):
            self._changes[event.group] = event
        elif isinstance(event, TurnCommitted):
            if self._seq in {None, event.seq}:
                self.turns[event.seq] = self._turn(entry, event)
            self._changes.clear()
        elif isinstance(event, RunOpened | RunStarted | RunMoved | RunEnded | TurnUnassigned):
            known = self.turns.get(event.turn_seq)
            if known is not None:
                known["since"].append(self._later(entry, event))
                if isinstance(event, RunOpened):
                    self._of_run[event.run_id] = known
        elif isinstance(event, FrameCommitted) and (known := self._of_run.get(event.run_id or "")) is not None:
            frames = known["frames"]
            frames[event.member] = frames.get(event.member, 0) + 1

    def _turn(self, entry: Entry, turn: TurnCommitted) -> dict[str, Any]:
        given = []
        for assignment in turn.assigned:
            changed = self._changes.get(assignment.group)
            choice = candidates(self._standing.state, assignment.group, self._conversation, entry.at)
            given.append(
                {
                    "group": assignment.group,
                    "run_id": assignment.run_id,
                    "owner": assignment.member,
                    "previous": None if changed is None else changed.previous,
                    "changed_because": None if changed is None else str(changed.reason),
                    "candidates": choice,
                    "words": self._why(assignment.group, assignment.member, choice, changed, entry.at),
                }
            )
        words = []
        if turn.joins_run is not None:
            words.append(f"it answers the open question of run {turn.joins_run}, and opens no run there")
        words += [f"in {group} it waits in line behind an earlier run" for group in turn.queued]
        words += [f"it waits for the first agent of channel {channel}" for channel in turn.waiting]
        if not (given or words):
            words.append("nobody gets it: its channel is routed to no agents, or a human answers")
        skew_ms = 0 if turn.turn.client_at is None else turn.turn.client_at - entry.timestamp
        if abs(skew_ms) > SKEW_MS:
            which = "ahead of" if skew_ms > 0 else "behind"
            words.append(
                f"its sender's clock was {abs(skew_ms) // 1000:,} s {which} the broker's; the order is the log's"
            )
        document: dict[str, Any] = {
            "seq": turn.seq,
            "lsn": entry.lsn,
            "at": entry.at,
            "timestamp": entry.timestamp,
            "client_at": turn.turn.client_at,
            "writer_epoch": entry.writer_epoch,
            "channel": turn.turn.channel,
            "sender": turn.turn.sender,
            "given": given,
            "words": words,
            "since": [],
            "frames": {},
        }
        self._of_run |= dict.fromkeys((assignment.run_id for assignment in turn.assigned), document)
        return document

    def _why(
        self, group: str, owner: str | None, choice: Sequence[dict[str, Any]], changed: OwnerChanged | None, at: int
    ) -> str:
        if not choice:
            return f"nobody of {group} was there: it waits for the group's first member"
        again = owner_of(self._standing.state, group, self._conversation, at)
        eligible = [each for each in choice if each["counts"]]
        best = next((each for each in choice if each["member"] == owner), None)
        if owner != again or best is None:
            return f"NOT EXPLAINED: the journal says {owner}, deciding again gives {again}"
        known = self._standing.conversation(self._conversation)
        if known is not None and known.pinned(group) == owner:
            why = f"an operator moved the conversation to {owner}, which is still there"
        elif len(eligible) == 1:
            why = f"{owner} was the only one of {len(choice)} that counted"
        else:
            runner = max((each for each in eligible if each["member"] != owner), key=_by_score)
            why = (
                f"of {len(choice)} members {len(eligible)} counted, and {owner} has the highest score for this "
                f"conversation: {best['score']}, before {runner['member']} with {runner['score']}"
            )
        if changed is not None:
            why += f"; the turn before went to {changed.previous}, which changed as {_REASONS[str(changed.reason)]}"
        return why

    def _later(
        self, entry: Entry, event: RunOpened | RunStarted | RunMoved | RunEnded | TurnUnassigned
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"lsn": entry.lsn, "timestamp": entry.timestamp, "event": type(event).__name__}
        match event:
            case RunOpened():
                row |= {"group": event.group, "member": event.member, "run_epoch": event.run_epoch}
                row["words"] = "waits in line" if event.queued else f"given to {event.member or 'nobody yet'}"
            case RunStarted():
                row |= {"group": event.group, "member": event.member, "run_epoch": event.run_epoch}
                row["words"] = f"{event.member} said that it works on it ({event.by})"
            case RunMoved():
                choice = candidates(self._standing.state, event.group, self._conversation, entry.at)
                row |= {
                    "group": event.group,
                    "from": event.from_member,
                    "member": event.to_member,
                    "run_epoch": event.run_epoch,
                    "reason": str(event.reason),
                    "candidates": choice,
                    "words": _moved(event),
                }
            case RunEnded():
                row |= {"group": event.group, "member": event.member, "run_epoch": event.run_epoch}
                row["words"] = f"{event.status}: {event.reason}"
            case TurnUnassigned():
                row["words"] = f"waits for {event.channel} no more: {event.reason}"
        return row


_REASONS: Final = {
    "member_left": "that member left",
    "member_expired": "that member's gateway was not heard of any more",
    "member_drained": "that member drains",
    "member_joined": "a member joined that has a higher score",
    "adopt_timeout": "nothing came of the process that had come back for it",
    "refused": "that member had no room for it",
    "operator": "an operator wanted it",
}


def _moved(moved: RunMoved) -> str:
    because = _REASONS.get(str(moved.reason), str(moved.reason)).replace("that member", moved.from_member or "nobody")
    to = "nobody yet" if moved.to_member is None else moved.to_member
    how = "waits for"
    if moved.to_member is not None:
        how = "adopted by" if moved.adopted else "continued by" if moved.continued else "begun anew by"
    hidden = f"; {len(moved.superseded)} frames of before are superseded" if moved.superseded else ""
    return f"run epoch {moved.run_epoch}: {how} {to}, because {because}{hidden}"


def candidates(state: Partition, group: str, conversation: str, at: int) -> list[dict[str, Any]]:
    """The members of a group at log time `at`, the highest score first. `counts`: it is one of those that are chosen
    from; `why_not` says why another is not."""
    roster = state.groups.get(group)
    members = [] if roster is None else list(roster.members.values())
    settled = [each for each in members if each.since <= at and not each.draining]
    pool = settled or [each for each in members if not each.draining]
    pool = pool or [each for each in members if each.since <= at] or members
    ids = {each.id for each in pool}
    rows = [
        {
            "member": each.id,
            "gateway": each.gateway,
            "since": each.since,
            "score": weight(conversation, each.id).hex(),
            "counts": each.id in ids,
            "why_not": None if each.id in ids else DRAINS if each.draining else "joined just now",
        }
        for each in members
    ]
    return sorted(rows, key=_by_score, reverse=True)


def _soon(state: Partition, chosen: Mapping[str, str | None], conversation: str) -> list[dict[str, Any]]:
    """Members that the next turn may be given to, though they do not count yet: log time stands still while nothing is
    written, and goes on with that turn."""
    found = []
    for group, member in chosen.items():
        rows = candidates(state, group, conversation, state.at)
        best = next((row["score"] for row in rows if row["member"] == member), "")
        found += [
            {"group": group, "member": row["member"], "since": row["since"]}
            for row in rows
            if row["since"] > state.at and not row["counts"] and row["why_not"] != DRAINS and row["score"] > best
        ]
    return found


def _by_score(row: dict[str, Any]) -> tuple[str, str]:
    return row["score"], row["member"]


async def explain(
    history: History, conversation: str, seq: int | None, *, cached: bool = True
) -> dict[str, Any] | None:
    """Why each turn of a conversation (or the one of this seq) went to whom; None: there is none. Raises `Unreachable`,
    and what the history raises."""
    partition = partition_of(conversation, history.partitions)
    traveller = Traveller(history, partition, cached=cached)
    try:
        now = await traveller.to(Target())
        known = now.conversation(conversation)
        if known is None:
            return None
        shown = conversation_document(now.state, known)
        standing = await traveller.before_seq(conversation, seq or 1)
        explainer = Explainer(standing, conversation, seq)
        await traveller.on(standing, Target(lsn=now.state.lsn), explainer.see)
        return {
            "conversation": conversation,
            "partition": partition,
            "hash": HASH,
            "now": shown,
            "soon": _soon(now.state, shown["next"], conversation),
            "missing": [str(each) for each in await history.missing(partition)],
            "turns": [*explainer.turns.values()],
        }
    finally:
        traveller.close()
