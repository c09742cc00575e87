"""Sequences of commands, plausible and adversarial, over so few names that everything collides with everything.

The same generator serves Hypothesis (which shrinks what it picks) and a seeded `random.Random` (long journals).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any, Protocol, TypeVar

import msgspec
from hypothesis import strategies as st

from streams.core.commands import (
    ApplyConfig,
    ApplyList,
    CancelRun,
    CloseConversation,
    Command,
    CommitBatch,
    CommitFrame,
    CommitPersonFrame,
    CommitTurn,
    Drain,
    EraseConversation,
    EraseIdle,
    GatewayBehind,
    GatewayExpired,
    HandBack,
    HandOver,
    Join,
    Leave,
    ListedMember,
    MoveConversation,
    NoteAction,
    OpenConversation,
    OpenWriter,
    RefuseRun,
    Reject,
    ReleaseRun,
    ReopenConversation,
    TimePassed,
)
from streams.core.erasure import DAY_MS
from streams.core.events import Frame, Invocation, Turn
from streams.core.fold import step
from streams.core.ids import invocation_message_id, message_id, turn_key
from streams.core.latest import latest_of
from streams.core.state import Partition, Run
from tests.support.partition_world import document

T = TypeVar("T")

GROUPS = ("agents/s", "agents/s", "agents/s", "agents", "auditors/x")
FRAME_TYPES = (
    "text", "text", "text", "genui", "genui", "tool_call", "interrupt", "interrupt_resolved", "read", "run", "run",
    "error", "checkpoint", "checkpoint", "typing", "hologram",
)  # fmt: skip
RIGHT_TYPES = ("run", "run", "text", "genui", "genui", "genui", "interrupt", "checkpoint", "tool_call")
PERSON_TYPES = (
    "resume", "resume", "abort", "edit", "edit", "regenerate", "survey", "genui_event", "client_tools"
)  # fmt: skip
STATUSES = ("started", "started", "finished", "error", "aborted", "interrupted", "unheard-of")
PAUSES = (0, 0, 0, 0, 1, 400, 1000, 2000, 6000, 301_000)
SETTINGS: tuple[dict[str, Any], ...] = (
    {}, {}, {"on_owner_loss": "fail"}, {"on_owner_loss": "restart"}, {"on_owner_loss": "continue"},
    {"group_settle_ms": 0}, {"watchdog_ms": 3000, "interrupt_ttl_ms": 2000}, {"adopt_ms": 1000},
    {"begin_ms": 2000}, {"wait_ms": 2000}, {"unassigned": "refuse"},
    {"begin_ms": 7000, "wait_ms": 1000, "watchdog_ms": 3000}, {"interrupt_ttl_ms": 3000}, {"interrupt_ttl_ms": 100_000},
    {"retain_days": 1},
    {"policy": "enqueue"}, {"policy": "enqueue", "deadline_ms": 5000}, {"policy": "reject", "busy": "refuse"},
    {"policy": "interrupt"}, {"policy": "enqueue", "groups": {"s": {"policy": "deliver", "on_owner_loss": "fail"}}},
    {"groups": {"s": {"policy": "enqueue"}, "x": {"policy": "interrupt", "busy": "refuse"}}}, {"deadline_ms": 3000},
)  # fmt: skip


class Picker(Protocol):
    """What makes the choices."""

    def __call__(self, options: Sequence[T], /) -> T: ...


class Sequencer:
    """Makes one command after another; keeps what a gateway would: its counter, its members, and by the journal who
    holds which run."""

    def __init__(self, pick: Picker) -> None:
        self._pick = pick
        self._at = 1_000_000
        self._ids = count(1)
        self._conversations = ["c0", "c1", "c2"]
        self._gateways = ["g0", "g1"]
        self._ended = ["g9"]
        self._n: dict[str, int] = {}
        self._members: dict[str, tuple[str, str]] = {}
        self._gone = ["ghost"]
        self._turns = ["00000000-0000-4000-8000-00000000dead"]
        self._frame_numbers: Counter[str] = Counter()
        self._left_out: dict[str, int] = {}
        self._sent: list[CommitFrame] = []
        self._version = 1
        self._positions = [0, 0, 0]
        self._state = Partition(0)
        self._makers: tuple[Callable[[], Command], ...] = (
            self._turn, self._turn, self._turn, self._turn, self._frame, self._frame, self._frame, self._frame,
            self._frame, self._frame, self._frame_again, self._join, self._join, self._leave, self._list, self._behind,
            self._expire, self._drain, self._config, self._time, self._time, self._open, self._close, self._reopen,
            self._batch, self._reject, self._person_frame, self._person_frame, self._hand_on,
            self._call, self._refuse, self._stop, self._move, self._erase,
        )  # fmt: skip

    def commands(self, length: int) -> list[Command]:
        """A writer, a document and open conversations first, then `length` of anything."""
        begin: list[Command] = [OpenWriter(**self._stamp(), writer_epoch=1, worker="wk-1"), self._config(first=True)]
        begin += [
            OpenConversation(**self._stamp(), conversation_id=id_, channel="web") for id_ in self._conversations[:2]
        ]
        begin += [self._join(right=True), self._join(right=True)]
        for command in begin:
            step(self._state, command, 1)
        return begin + [self._next() for _ in range(length)]

    def _next(self) -> Command:
        self._at += self._pick(PAUSES)
        command = self._pick(self._makers)()
        step(self._state, command, 1)
        return command

    def _stamp(self) -> dict[str, Any]:
        return {"at": self._at, "timestamp": 1_700_000_000_000 + self._at, "ref": f"r{next(self._ids)}"}

    def _member(self) -> str:
        return self._pick([*self._members, *self._members, *self._gone[-2:]])

    def _turn(self) -> Command:
        conversation = self._pick(self._conversations)
        key = self._pick((None, None, "k1", "k2", "k3", f"k{next(self._ids)}"))
        id_ = f"00000000-0000-4000-8000-{next(self._ids):012d}"
        if key is not None:
            id_ = message_id(conversation, turn_key("ann", key))
        self._turns.append(id_)
        text = self._pick(("hi", "hi", "ö", "a\0b", "x" * 70_000))
        turn = Turn(
            id=id_, sender="ann", channel="web", type="text", key=key, text=text, reply_to=self._pick((None, "ask-2"))
        )
        return CommitTurn(**self._stamp(), conversation_id=conversation, turn=turn)

    def _call(self) -> Command:
        conversation, id_ = self._pick(self._conversations), self._pick(("i1", "i2", f"i{next(self._ids)}"))
        called = Invocation(
            id=id_, group=self._pick((*GROUPS, "agents/none")), input_hash=self._pick(("h1", "h1", "h1", "h2")),
            deadline_ms=self._pick((0, 3000, 300_000, -1)), streamed=self._pick((False, True)),
            policy=self._pick((None, None, "enqueue", "interrupt", "reject", "later")),
            retry=self._pick((False, True)),
        )  # fmt: skip
        turn = Turn(
            id=invocation_message_id(conversation, id_, called.input_hash), sender="ann", channel="web", type="text",
            text="do it", invocation=called,
        )  # fmt: skip
        return CommitTurn(**self._stamp(), conversation_id=conversation, turn=turn)

    def _run(self) -> tuple[str, Run | None]:
        """One that is open, mostly; its conversation."""
        runs = [(id_, run) for id_, c in self._state.conversations.items() for run in c.runs.values()]
        plausible = self._pick((True, True, True, False)) if runs else False
        if plausible:
            return self._pick(runs)
        return self._pick(self._conversations), None

    def _refuse(self) -> Command:
        conversation, run = self._run()
        return RefuseRun(
            **self._stamp(), conversation_id=conversation, run_id="?" if run is None else run.id, reason="busy",
            run_epoch=1 if run is None else run.epoch + self._pick((0, 0, 0, 0, 1)),
            member=self._member() if run is None else run.member or self._member(),
        )  # fmt: skip

    def _stop(self) -> Command:
        """Cancelled, or released by an operator."""
        conversation, run = self._run()
        named = f"{conversation}/1/agents/s" if run is None else run.id
        if self._pick((True, True, False)):
            return CancelRun(**self._stamp(), conversation_id=conversation, run_id=named, by="ann", reason="enough")
        return ReleaseRun(
            **self._stamp(), conversation_id=conversation, run_id=named, by="op", reason="stuck",
            proof=self._pick(("it is off", "")),
        )  # fmt: skip

    def _frame_again(self) -> Command:
        """One of the last ones lies in the intake once more."""
        if not self._sent:
            return self._frame()
        sent = self._pick(self._sent[-8:])
        return msgspec.structs.replace(sent, **(self._stamp() | {"ref": sent.ref}))

    def _frame(self) -> Command:
        """Numbered, but for some; a number that was left out may come later than those behind it."""
        frame = self._unnumbered()
        number = self._pick((True, True, True, True, True, True, False))
        if number and self._left_out.get(frame.member, 0) and self._pick((False, True)):
            frame = msgspec.structs.replace(frame, n=self._left_out.pop(frame.member))
        elif number:
            last = self._frame_numbers[frame.member] + self._pick((1, 1, 1, 1, 2))
            if last > self._frame_numbers[frame.member] + 1:
                self._left_out[frame.member] = last - 1
            self._frame_numbers[frame.member] = last
            frame = msgspec.structs.replace(frame, n=last)
        self._sent.append(frame)
        return frame

    def _unnumbered(self) -> CommitFrame:
        member, conversation = self._member(), self._pick(self._conversations)
        group = self._members[member][1] if member in self._members else "agents/s"
        runs = [(id_, run) for id_, c in self._state.conversations.items() for run in c.runs.values() if run.member]
        plausible = self._pick((True, True, True, False))
        if runs and plausible:
            return self._right_frame(*self._pick(runs))
        kind = self._pick(FRAME_TYPES)
        client_id = self._pick((None, "m1", "m2", f"p.{self._turns[-1]}.m1", f"p.{self._pick(self._turns)}.m2"))
        frame = Frame(
            id=self._pick(("ask-1", "ask-2")) if kind.startswith("interrupt") else f"f{next(self._ids)}",
            type=kind,
            client_id=client_id if kind not in {"read", "run"} else None,
            stream_id=self._pick(("s1", "s2")) if kind == "genui" else None,
            done=kind == "genui" and self._pick((False, False, True)),
            status=self._pick(STATUSES) if kind == "run" else None,
            watermark=self._pick((1, 2, 3, 9)) if kind == "read" else 0,
        )
        named = self._pick((None, None, None, *(f"{conversation}/{seq}/{group}" for seq in (1, 2, 3))))
        return CommitFrame(
            **self._stamp(), conversation_id=conversation, frame=frame, sender="bot", channel=group.partition("/")[0],
            group=group, member=member, gateway="g0", run_id=named, run_epoch=self._pick((None, None, 1, 2)),
            delivered_seq=self._pick((0, 1, 2, 3, 99)),
        )  # fmt: skip

    def _right_frame(self, conversation: str, run: Run) -> CommitFrame:
        """One of the member that holds the run, as it would send it."""
        kind = self._pick(RIGHT_TYPES)
        frame = Frame(
            id=self._pick(("ask-1", "ask-2")) if kind.startswith("interrupt") else f"f{next(self._ids)}",
            type=kind,
            client_id=None if kind == "run" else f"m{next(self._ids)}",
            stream_id=self._pick(("s1", "s2")) if kind == "genui" else None,
            done=kind == "genui" and self._pick((False, True)),
            status=self._pick(("started", "started", "started", "finished")) if kind == "run" else None,
        )
        return CommitFrame(
            **self._stamp(), conversation_id=conversation, frame=frame, sender="bot",
            channel=run.group.partition("/")[0], group=run.group, member=run.member or "", gateway="g0",
            run_id=self._pick((None, run.id)), run_epoch=self._pick((None, run.epoch)), delivered_seq=run.turn_seq,
        )  # fmt: skip

    def _gateway(self) -> str:
        return self._pick([*self._gateways, *self._gateways, *self._gateways, self._ended[-1]])

    def _number(self, gateway: str, *, right: bool = False) -> int:
        """Mostly the next number; else one that was used, or that comes too early."""
        off = 0 if right else self._pick((0, 0, 0, 0, 0, 1, -1))
        if off == 0:
            self._n[gateway] = self._n.get(gateway, 0) + 1
        return max(0, self._n.get(gateway, 0) + off)

    def _join(self, *, right: bool = False) -> Command:
        gateway, group = self._gateways[0] if right else self._gateway(), self._pick(GROUPS)
        member = f"{gateway}.{next(self._ids)}"
        each = not right and self._pick((False, False, False, False, True))
        if each:
            group = f"agents/~{member}"
        n = self._number(gateway, right=right)
        self._members[member] = (gateway, group)
        watermarks = {id_: mark for id_ in self._conversations if (mark := self._pick((0, 0, 0, 1, 2, 99)))}
        return Join(
            **self._stamp(), gateway=gateway, n=n, member=member, channel=group.partition("/")[0], group=group,
            each=each, watermarks=watermarks, continues=self._pick((False, True)),
            instance=self._pick(("", "", "", "p1", "p2")),
        )  # fmt: skip

    def _forget(self, member: str) -> None:
        if self._members.pop(member, None) is not None:
            self._gone.append(member)

    def _leave(self) -> Command:
        member = self._member()
        gateway = self._members[member][0] if member in self._members else "g0"
        n = self._number(gateway)
        self._forget(member)
        reason = self._pick(("left", "done", "drained", "closed"))
        return Leave(**self._stamp(), gateway=gateway, n=n, member=member, reason=reason)

    def _drain(self) -> Command:
        """Any member, or one that is not there, once or again."""
        return Drain(**self._stamp(), member=self._member(), by=self._pick(("g0", "operator")), reason="deploy")

    def _list(self) -> Command:
        gateway = self._gateway()
        listed = tuple(
            ListedMember(
                member, group.partition("/")[0], group,
                continues=self._pick((False, True)), draining=self._pick((False, False, True)),
                instance=self._pick(("", "", "", "p1", "p2")),
            )
            for member, (its, group) in self._members.items()
            if its == gateway and self._pick((True, True, True, False))
        )  # fmt: skip
        return ApplyList(**self._stamp(), gateway=gateway, n=self._n.get(gateway, 0), members=listed)

    def _behind(self) -> Command:
        gateway = self._gateway()
        n, version = self._n.get(gateway, 0) + self._pick((0, 1)), self._version + self._pick((0, 1))
        return GatewayBehind(**self._stamp(), gateway=gateway, n=n, config_version=version)

    def _expire(self) -> Command:
        """A serving gateway, which a new incarnation follows, or one that is not."""
        gateway = self._pick(("g8", self._ended[-1], *self._gateways))
        if gateway in self._gateways:
            self._gateways[self._gateways.index(gateway)] = f"g{next(self._ids)}"
        self._ended.append(gateway)
        for member in [member for member, (its, _) in self._members.items() if its == gateway]:
            self._forget(member)
        return GatewayExpired(**self._stamp(), gateway=gateway, reason=self._pick(("expired", "stopped")))

    def _config(self, *, first: bool = False) -> Command:
        self._version += self._pick((0, 1))
        to = ("agents",) if first else self._pick((("agents",), ("agents",), ("agents", "auditors"), ()))
        text = document(self._version, to=to, **({} if first else self._pick(SETTINGS)))
        return ApplyConfig(**self._stamp(), version=self._version, document=text)

    def _time(self) -> Command:
        return TimePassed(at=self._at, timestamp=1_700_000_000_000 + self._at)

    def _open(self) -> Command:
        """One that is there, or a new one that takes the place of the oldest: in long journals all stay short."""
        if self._pick((True, False)):
            self._conversations = [*self._conversations[1:], f"c{next(self._ids)}"]
        channel = self._pick(("web", "web", "web", "web", "lobby", "nowhere"))
        conversation, key = self._pick(self._conversations), self._pick((None, "k1"))
        return OpenConversation(**self._stamp(), conversation_id=conversation, channel=channel, key=key)

    def _close(self) -> Command:
        id_ = f"close-{next(self._ids)}"
        return CloseConversation(
            **self._stamp(), conversation_id=self._pick(self._conversations), by="ann", reason="done", id=id_
        )

    def _erase(self) -> Command:
        """Of one conversation alone, again and again: nothing more is said in an erased one."""
        erased = [id_ for id_, known in self._state.conversations.items() if known.erased]
        id_ = f"erase-{next(self._ids)}"
        if self._pick((True, False, False)):
            return self._erase_idle(id_)
        given = {**self._stamp(), "by": "op", "reason": "asked"}
        return EraseConversation(**given, conversation_id=self._pick(erased or self._conversations), id=id_)

    def _erase_idle(self, id_: str) -> Command:
        """Of any conversation, by who saw all of it, or missed something."""
        conversation = self._pick(self._conversations)
        known = self._state.conversations.get(conversation)
        head = 0 if known is None else known.head
        as_of = self._state.lsn if known is None else self._pick((self._state.lsn, known.lsn, known.lsn - 1))
        return EraseIdle(
            **self._stamp(),
            conversation_id=conversation,
            id=id_,
            idle_since=self._at - self._pick((0, DAY_MS)),
            head_seq=self._pick((head, head, head - 1)),
            as_of_lsn=as_of,
        )

    def _reopen(self) -> Command:
        id_ = f"reopen-{next(self._ids)}"
        return ReopenConversation(**self._stamp(), conversation_id=self._pick(self._conversations), by="ann", id=id_)

    def _person_frame(self) -> Command:
        """Mostly what can be taken: an answer to what is asked, or something about the latest turn."""
        asking = [
            (id_, run.progress.asks)
            for id_, conversation in self._state.conversations.items()
            for run in conversation.runs.values()
            if run.progress is not None and run.progress.asks
        ]
        kind = self._pick(PERSON_TYPES)
        id_, asks = self._pick(self._conversations), ["ask-1"]
        if asking and kind == "resume":
            id_, open_asks = self._pick(asking)
            asks = list(open_asks)[: self._pick((1, 2, 2))]
        data = f'{{"answers":{{{",".join(f"{chr(34)}{ask}{chr(34)}:true" for ask in asks)}}}}}'
        known = self._state.conversations.get(id_)
        latest = None if known is None else latest_of(known)
        message = "none" if latest is None else latest.id
        frame = Frame(
            id=f"f{next(self._ids)}",
            type=kind,
            client_id=self._pick((None, "m1", f"m{next(self._ids)}")),
            text="better" if kind == "edit" else None,
            data=self._pick((data, data, data, "{}")) if kind == "resume" else None,
            extra=f'{{"messageId":"{self._pick((message, message, "other"))}"}}',
            watermark=self._pick((0, 1, 2, 3)),
        )
        sender = self._pick(("ann", "ann", "ann", "bob"))
        return CommitPersonFrame(**self._stamp(), conversation_id=id_, frame=frame, sender=sender, channel="web")

    def _hand_on(self) -> Command:
        """To a human, or, more often, so that agents answer most of the time, back."""
        given = {**self._stamp(), "by": "eve", "reason": "", "id": f"hand-{next(self._ids)}"}
        id_ = self._pick(self._conversations)
        if self._pick((True, False, False, False)):
            return HandOver(**given, conversation_id=id_, to="desk")
        over = [id_ for id_ in self._conversations if id_ in self._state.conversations]
        over = [id_ for id_ in over if self._state.conversations[id_].handed_over]
        return HandBack(**given, conversation_id=self._pick([*over, id_]))

    def _move(self) -> Command:
        """By an operator: to somebody, or away from who has it; or a note of what was done elsewhere."""
        given = {**self._stamp(), "by": "op", "reason": "slow"}
        if self._pick((True, False, False, False, False, False)):
            return NoteAction(**{**given, "ref": None}, action="lease_released", subject="0", id=f"n{next(self._ids)}")
        to = self._pick((None, self._member(), self._member()))
        group = self._pick(("", *GROUPS)) if to is None else ""
        return MoveConversation(**given, conversation_id=self._pick(self._conversations), to=to, group=group)

    def _batch(self) -> Command:
        self._positions = [position + self._pick((0, 1, 7)) for position in self._positions]
        turns, frames, membership = self._positions
        return CommitBatch(**self._stamp(), turns=turns, frames=frames, membership=membership)

    def _reject(self) -> Command:
        return Reject(**self._stamp(), origin=f"turns/0/{next(self._ids)}", reason="truncated")


@st.composite
def command_lists(draw: st.DrawFn, max_size: int = 60) -> list[Command]:
    """Sequences that begin well and go on with anything."""

    def pick(options: Sequence[T]) -> T:
        return options[draw(st.integers(min_value=0, max_value=len(options) - 1))]

    return Sequencer(pick).commands(draw(st.integers(min_value=0, max_value=max_size)))


def seeded_commands(seed: int, length: int) -> list[Command]:
    """The same sequence for the same seed, on every machine and Python."""
    random = Random(seed)

    def pick(options: Sequence[T]) -> T:
        return options[int(random.random() * len(options))]

    return Sequencer(pick).commands(length)
