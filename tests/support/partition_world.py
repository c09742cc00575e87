"""A partition with a log clock and gateways that count, for tests of the core: commands by their gist, entries kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, TypeVar

from streams.core.commands import (
    ApplyConfig,
    ApplyList,
    CancelRun,
    CloseConversation,
    Command,
    CommitFrame,
    CommitPersonFrame,
    CommitTurn,
    Drain,
    EraseConversation,
    EraseIdle,
    GatewayExpired,
    HandBack,
    HandOver,
    Join,
    Leave,
    ListedMember,
    MoveConversation,
    OpenConversation,
    OpenWriter,
    RefuseRun,
    ReleaseRun,
    ReopenConversation,
    TimePassed,
)
from streams.core.events import Entry, Event, Frame, Invocation, Turn
from streams.core.fold import evolve, step
from streams.core.ids import invocation_message_id, message_id, turn_key
from streams.core.state import Conversation, Partition
from streams.core.store import dump_conversation, dump_partition

GROUP = "agents/support"
SETTLE_MS = 1000
WRITER_EPOCH = 1

E = TypeVar("E", bound=Event)


def document(
    version: int = 1, *, to: Iterable[str] = ("agents",), retain_days: int | None = None, **agents: Any
) -> str:
    """The document of channels; further keywords are settings of every agent channel, `retain_days` is the channel
    `web`'s."""
    web = {"id": "web", "kind": "web", "retain_days": retain_days}
    people = [web, {"id": "lobby", "kind": "web"}, {"id": "shut", "active": False}]
    return json.dumps(
        {
            "version": version,
            "channels": people + [{"id": id_, "kind": "websocket", **agents} for id_ in ("agents", "auditors")],
            "routes": [{"from": "web", "to": list(to)}],
        }
    )


def image(state: Partition) -> dict[str, bytes]:
    """The whole state as bytes: the partition's own under "", each loaded conversation's under its id."""
    rows = {id_: dump_conversation(conversation)[0] for id_, conversation in state.conversations.items()}
    return {"": dump_partition(state), **rows}


def replay(entries: Iterable[Entry], partition: int = 0) -> Partition:
    """The state that a fold of these entries from nothing gives."""
    state = Partition(partition)
    for entry in entries:
        evolve(state, entry)
    return state


class World:
    """One partition from its first writer on; `at` is log time and moves by `pass_time` only."""

    def __init__(self, *, to: Iterable[str] = ("agents",), **agents: Any) -> None:
        self.state = Partition(0)
        self.journal: list[Entry] = []
        self.at = 1_000_000
        self._n: dict[str, int] = {}
        self._ids = count(1)
        self.do(OpenWriter(at=self.at, timestamp=self.wall, writer_epoch=WRITER_EPOCH, worker="wk-1"))
        self.configure(to=to, **agents)

    @property
    def wall(self) -> int:
        return 1_700_000_000_000 + self.at

    def do(self, command: Command) -> list[Event]:
        entries = step(self.state, command, WRITER_EPOCH)
        self.journal += entries
        return [entry.event for entry in entries]

    def of(self, kind: type[E]) -> list[E]:
        """Events of this kind so far."""
        return [entry.event for entry in self.journal if isinstance(entry.event, kind)]

    def conversation(self, id_: str = "c") -> Conversation:
        return self.state.conversations[id_]

    # ---------------------------------------------------------------------------------------- membership

    def configure(self, version: int = 1, *, to: Iterable[str] = ("agents",), **agents: Any) -> list[Event]:
        text = document(version, to=to, **agents)
        return self.do(ApplyConfig(at=self.at, timestamp=self.wall, version=version, document=text))

    def next_n(self, gateway: str) -> int:
        self._n[gateway] = self._n.get(gateway, 0) + 1
        return self._n[gateway]

    def join(
        self, member: str, group: str = GROUP, gateway: str = "gw-1", *, n: int | None = None, settle: bool = False,
        each: bool = False, watermarks: Mapping[str, int] | None = None, continues: bool = False, instance: str = "",
    ) -> list[Event]:  # fmt: skip
        """`settle`: let the settling time pass afterwards. `watermarks`: per conversation."""
        number = self.next_n(gateway) if n is None else n
        channel = group.partition("/")[0]
        command = Join(
            at=self.at, timestamp=self.wall, gateway=gateway, n=number, member=member, channel=channel, group=group,
            each=each, watermarks=dict(watermarks or {}), continues=continues, instance=instance,
        )  # fmt: skip
        events = self.do(command)
        if settle:
            self.at += SETTLE_MS
        return events

    def leave(self, member: str, gateway: str = "gw-1", *, n: int | None = None, reason: str = "left") -> list[Event]:
        number = self.next_n(gateway) if n is None else n
        return self.do(Leave(at=self.at, timestamp=self.wall, gateway=gateway, n=number, member=member, reason=reason))

    def drain(self, member: str, *, by: str = "gw-1", reason: str = "deploy") -> list[Event]:
        return self.do(Drain(at=self.at, timestamp=self.wall, member=member, by=by, reason=reason))

    def list_members(
        self, gateway: str, n: int, *members: str, group: str = GROUP, draining: Iterable[str] = (), instance: str = ""
    ) -> list[Event]:
        """All members of the gateway; `draining` names those of them that do."""
        drain = set(draining)
        listed = tuple(
            ListedMember(member, group.partition("/")[0], group, draining=member in drain, instance=instance)
            for member in members
        )
        return self.do(ApplyList(at=self.at, timestamp=self.wall, gateway=gateway, n=n, members=listed))

    def expire(self, gateway: str, reason: str = "expired") -> list[Event]:
        return self.do(GatewayExpired(at=self.at, timestamp=self.wall, gateway=gateway, reason=reason))

    def pass_time(self, ms: int) -> list[Event]:
        """Ticks of at most a second each, as the sequencer sees them."""
        events: list[Event] = []
        until = self.at + ms
        while self.at < until:
            self.at = min(self.at + 1000, until)
            events += self.do(TimePassed(at=self.at, timestamp=self.wall))
        return events

    # -------------------------------------------------------------------------------------- conversations

    def open(self, id_: str = "c", channel: str = "web", key: str | None = None, ref: str = "r") -> list[Event]:
        return self.do(
            OpenConversation(at=self.at, timestamp=self.wall, ref=ref, conversation_id=id_, channel=channel, key=key)
        )

    def say(
        self, text: str = "hello", id_: str = "c", *, key: str | None = None, sender: str = "ann",
        ref: str | None = None, **fields: Any,
    ) -> list[Event]:  # fmt: skip
        """A person's turn."""
        made = f"00000000-0000-4000-8000-{next(self._ids):012d}"
        if "id" not in fields:
            fields["id"] = made if key is None else message_id(id_, turn_key(sender, key))
        fields = {"type": "text", "channel": "web"} | fields
        turn = Turn(sender=sender, key=key, text=text, **fields)
        return self.do(CommitTurn(at=self.at, timestamp=self.wall, ref=ref, conversation_id=id_, turn=turn))

    def call(
        self, invocation: str = "i", text: str = "hello", id_: str = "c", *, group: str = GROUP, ref: str | None = None,
        **terms: Any,
    ) -> list[Event]:  # fmt: skip
        """An invocation: a turn for one group, under its caller's id."""
        called = Invocation(id=invocation, group=group, input_hash=f"hash-of-{text}", **terms)
        turn = Turn(
            id=invocation_message_id(id_, invocation, called.input_hash), sender="ann", channel="web", type="text",
            text=text, invocation=called,
        )  # fmt: skip
        return self.do(CommitTurn(at=self.at, timestamp=self.wall, ref=ref, conversation_id=id_, turn=turn))

    def cancel(self, run: str, id_: str = "c", *, ref: str | None = None) -> list[Event]:
        return self.do(
            CancelRun(
                at=self.at, timestamp=self.wall, ref=ref, conversation_id=id_, run_id=run, by="ann", reason="enough"
            )
        )

    def release(self, run: str, id_: str = "c", *, proof: str = "its host is off") -> list[Event]:
        command = ReleaseRun(
            at=self.at, timestamp=self.wall, conversation_id=id_, run_id=run, by="op", reason="stuck", proof=proof
        )
        return self.do(command)

    def refuse(self, member: str, run: str, id_: str = "c", *, epoch: int = 1) -> list[Event]:
        """A member does not take a run that it was given."""
        command = RefuseRun(
            at=self.at, timestamp=self.wall, conversation_id=id_, run_id=run, run_epoch=epoch, member=member,
            reason="busy",
        )  # fmt: skip
        return self.do(command)

    def send(
        self, member: str, type_: str = "text", id_: str = "c", *, group: str = GROUP, delivered: int = 0,
        run: str | None = None, epoch: int | None = None, ref: str | None = None, n: int = 0, **fields: Any,
    ) -> list[Event]:  # fmt: skip
        """An agent's frame; `n`: its number, where its gateway gave it one."""
        frame = Frame(**({"id": f"frame-{next(self._ids)}", "type": type_} | fields))
        command = CommitFrame(
            at=self.at, timestamp=self.wall, ref=ref, conversation_id=id_, frame=frame, sender="bot",
            channel=group.partition("/")[0], group=group, member=member, gateway="gw-1", run_id=run, run_epoch=epoch,
            delivered_seq=delivered, n=n,
        )  # fmt: skip
        return self.do(command)

    def read(self, member: str, watermark: int, **fields: Any) -> list[Event]:
        return self.send(member, "read", watermark=watermark, **fields)

    def run(self, member: str, status: str, **fields: Any) -> list[Event]:
        return self.send(member, "run", status=status, **fields)

    def chunk(self, member: str, stream: str, *, done: bool = False, **fields: Any) -> list[Event]:
        return self.send(member, "genui", stream_id=stream, done=done, **fields)

    def person(
        self, type_: str, id_: str = "c", *, sender: str = "ann", channel: str = "web", ref: str | None = None,
        **fields: Any,
    ) -> list[Event]:  # fmt: skip
        """What a person sends beside their turns."""
        frame = Frame(**({"id": f"frame-{next(self._ids)}", "type": type_} | fields))
        return self.do(
            CommitPersonFrame(
                at=self.at, timestamp=self.wall, ref=ref, conversation_id=id_, frame=frame, sender=sender,
                channel=channel,
            )
        )  # fmt: skip

    def resume(self, answers: Mapping[str, Any], id_: str = "c", **fields: Any) -> list[Event]:
        return self.person("resume", id_, data=json.dumps({"answers": answers}), **fields)

    def edit(self, message: str, text: str = "better", id_: str = "c", **fields: Any) -> list[Event]:
        return self.person("edit", id_, text=text, extra=json.dumps({"messageId": message}), **fields)

    def regenerate(self, message: str, id_: str = "c", **fields: Any) -> list[Event]:
        return self.person("regenerate", id_, extra=json.dumps({"messageId": message}), **fields)

    def hand_over(self, id_: str = "c", *, ref: str | None = None, update: str = "over") -> list[Event]:
        return self.do(
            HandOver(
                at=self.at,
                timestamp=self.wall,
                ref=ref,
                conversation_id=id_,
                by="op",
                to="desk",
                reason="asked",
                id=update,
            )
        )

    def move(self, to: str | None, id_: str = "c", *, group: str = "", ref: str | None = None) -> list[Event]:
        return self.do(
            MoveConversation(
                at=self.at,
                timestamp=self.wall,
                ref=ref,
                conversation_id=id_,
                to=to,
                group=group,
                by="op",
                reason="slow",
            )
        )

    def erase(self, id_: str = "c", *, ref: str | None = None, update: str = "erase") -> list[Event]:
        return self.do(
            EraseConversation(
                at=self.at, timestamp=self.wall, ref=ref, conversation_id=id_, by="op", reason="asked", id=update
            )
        )

    def erase_idle(
        self, id_: str = "c", *, since: int, head: int | None = None, as_of: int | None = None, update: str = "erase"
    ) -> list[Event]:
        """As who looked now; `since`: log time of the last numbered event."""
        known = self.state.conversations.get(id_)
        return self.do(
            EraseIdle(
                at=self.at,
                timestamp=self.wall,
                conversation_id=id_,
                id=update,
                idle_since=since,
                head_seq=(0 if known is None else known.head) if head is None else head,
                as_of_lsn=self.state.lsn if as_of is None else as_of,
            )
        )

    def hand_back(self, id_: str = "c", *, ref: str | None = None, update: str = "back") -> list[Event]:
        return self.do(
            HandBack(at=self.at, timestamp=self.wall, ref=ref, conversation_id=id_, by="op", reason="done", id=update)
        )

    def close(self, id_: str = "c") -> list[Event]:
        return self.do(
            CloseConversation(
                at=self.at, timestamp=self.wall, conversation_id=id_, by="ann", reason="done", id=f"close-{id_}"
            )
        )

    def reopen(self, id_: str = "c") -> list[Event]:
        return self.do(
            ReopenConversation(at=self.at, timestamp=self.wall, conversation_id=id_, by="ann", id=f"reopen-{id_}")
        )
