"""What is told of a point of history: documents for scripts, which tables for people are made of. Nobody's text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from ops.replay.travel import Standing
from streams.core.events import Entry
from streams.core.ownership import owner_of
from streams.core.state import Conversation, Partition, Run


def standing_document(standing: Standing, *, conversation: str | None, limit: int) -> dict[str, Any]:
    """The state of a partition: members, open runs, turns that wait, and owners; of one conversation, or of the first
    `limit` by id."""
    state = standing.state
    if conversation is not None:
        found = standing.conversation(conversation)
        chosen = [] if found is None else [found]
    else:
        chosen = list(islice(standing.conversations(), limit))
    hot = [state.conversations[id_] for id_ in sorted(state.conversations)]
    if conversation is not None:
        hot = [each for each in hot if each.id == conversation]
    return {
        "partition": state.partition,
        "as_of": as_of(standing),
        "config_version": state.config.version,
        "gateways": [{"gateway": each.id, "members": list(each.members)} for each in state.gateways.values()],
        "members": [member_document(state, id_) for id_ in sorted(state.members)],
        "open_runs": [run_document(each, run) for each in hot for run in each.runs.values()],
        "waiting": [
            {"conversation": each.id, "channel": channel, "turn_seq": turn.turn_seq}
            for each in hot
            for channel, turns in sorted(each.waiting.items())
            for turn in turns
        ],
        "conversations": [conversation_document(state, each) for each in chosen],
    }


def as_of(standing: Standing) -> dict[str, Any]:
    """Where it is: `offset` and `lsn` of the last entry, its time (`timestamp`) and log time (`at`)."""
    state = standing.state
    return {
        "offset": standing.position - 1,
        "lsn": state.lsn,
        "timestamp": standing.timestamp,
        "at": state.at,
        "writer_epoch": state.writer_epoch,
    }


def member_document(state: Partition, id_: str) -> dict[str, Any]:
    """One member, and whether it counts for turns of that moment."""
    member = state.members[id_]
    return {
        "member": id_,
        "group": member.group,
        "channel": member.channel,
        "gateway": member.gateway,
        "since": member.since,
        "eligible": member.since <= state.at and not member.draining,
        "draining": member.draining,
        "continues": member.continues,
        "runs": sum(member.conversations.values()),
    }


def run_document(conversation: Conversation, run: Run) -> dict[str, Any]:
    """One open run. `member` None: it waits for one."""
    progress = run.progress
    return {
        "conversation": conversation.id,
        "run_id": run.id,
        "turn_seq": run.turn_seq,
        "group": run.group,
        "member": run.member,
        "run_epoch": run.epoch,
        "started": progress is not None and progress.started,
        "queued": run.queued,
        "cancelling": run.cancelling,
        "frames": 0 if progress is None else len(progress.frames),
        "asks": [] if progress is None else sorted(progress.asks),
    }


def conversation_document(state: Partition, conversation: Conversation) -> dict[str, Any]:
    """Who owned it: the member that its last turn was given to, by group, and who would get a turn of that moment."""
    groups = sorted({*conversation.owners, *_groups_of(state, conversation)})
    return {
        "conversation": conversation.id,
        "channel": conversation.channel,
        "status": "open" if conversation.open else "closed",
        "handed_over": conversation.handed_over,
        "head_seq": conversation.head,
        "changed_lsn": conversation.lsn,
        "owners": {group: conversation.owners.get(group) for group in groups},
        "next": {group: owner_of(state, group, conversation.id, state.at) for group in groups},
        "open_runs": len(conversation.runs),
    }


def _groups_of(state: Partition, conversation: Conversation) -> Iterable[str]:
    channels = state.config.routes.get(conversation.channel, ())
    return [group for channel in channels for group in state.channel_groups.get(channel, {})]


class Difference:
    """What changed between two points: shown every entry on the way, it remembers what each thing was before."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._from = as_of(standing)
        self._members = self._all_members()
        self._before: dict[str, dict[str, Any] | None] = {}
        self._runs: dict[str, list[dict[str, Any]]] = {}
        self._counts: dict[str, int] = {}

    def see(self, entry: Entry) -> None:
        """The next entry; the state is still the one before it."""
        kind = type(entry.event).__name__
        self._counts[kind] = self._counts.get(kind, 0) + 1
        name = entry.event.conversation_id
        if name is not None and name not in self._before:
            self._before[name], self._runs[name] = self._shown(name)

    def document(self, *, conversation: str | None) -> dict[str, Any]:
        """Members that came, went or changed; conversations, and their open runs, that are another than before."""
        names = sorted(self._before) if conversation is None else [conversation]
        now = {name: self._shown(name) for name in names}
        before_runs = {run["run_id"]: run for name in names for run in self._runs.get(name, [])}
        after_runs = {run["run_id"]: run for _, runs in now.values() for run in runs}
        before = {name: known for name in names if (known := self._before.get(name)) is not None}
        after = {name: known for name, (known, _) in now.items() if known is not None}
        return {
            "partition": self._standing.state.partition,
            "from": self._from,
            "to": as_of(self._standing),
            "events": dict(sorted(self._counts.items())),
            "members": _changes(self._members, self._all_members(), "member"),
            "runs": _changes(before_runs, after_runs, "run_id"),
            "conversations": _changes(before, after, "conversation"),
        }

    def _all_members(self) -> dict[str, dict[str, Any]]:
        state = self._standing.state
        return {id_: member_document(state, id_) for id_ in sorted(state.members)}

    def _shown(self, name: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        known = self._standing.conversation(name)
        if known is None:
            return None, []
        runs = [run_document(known, run) for run in known.runs.values()]
        return conversation_document(self._standing.state, known), runs


def _changes(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """One row for each that is another than before: `change` is new, gone or changed, `what` the fields of it."""
    rows: list[dict[str, Any]] = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old is None and new is not None:
            rows.append({"change": "new", name: key, "what": new})
        elif new is None and old is not None:
            rows.append({"change": "gone", name: key, "what": old})
        elif old is not None and new is not None and old != new:
            differs = {field: [old[field], new[field]] for field in new if old[field] != new[field]}
            rows.append({"change": "changed", name: key, "what": differs})
    return rows
