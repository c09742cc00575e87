"""One process of an agent, as the gateway knows it: takes turns off its connection and has them answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from turnlog.connection import Connection
from turnlog.errors import TurnlogError
from turnlog.followed import Followed
from turnlog.handlers import Handlers
from turnlog.lanes import Lanes
from turnlog.logs import ANSWERED
from turnlog.outbox import Outbox
from turnlog.past import Past
from turnlog.reply import Reply
from turnlog.resume import resume_in
from turnlog.run import Run, RunState
from turnlog.tracing import Answering, untraced
from turnlog.turn import Turn, turn_in
from turnlog.wire import PROTOCOL, Frame

log = logging.getLogger("turnlog")


_NOTICES = frozenset({"client_tools", "client_skills", "survey", "event"})
"""What a person's client says that starts no turn: for the handler of frames."""


@dataclass(frozen=True, slots=True)
class Settings:
    """See `Agent`."""

    group: str | None = None
    drain_budget: float = 10.0
    ack_timeout: float = 30.0
    flush_every: float = 0.1
    most_at_once: int = 200
    continues: bool = False
    most_runs: int | None = None
    instance: str | None = None


class Process:
    """The peer of a connection."""

    def __init__(
        self, settings: Settings, handlers: Handlers, link: Connection, *, answering: Answering = untraced
    ) -> None:
        self._settings = settings
        self._answering = answering
        self._handlers = handlers
        self._link = link
        self.on_ready: Callable[[], None] | None = None
        """Called once, when a gateway has welcomed this process."""
        self._stopping = False
        self._secret: str | None = None
        """What proves, at any gateway, that a next connection is this process's."""
        self._parts: dict[str, tuple[str | None, int | None, list[Frame]]] = {}
        """Per conversation: the run that a turn to come goes on with, its epoch, the first frames of its `resume`."""
        self._notices: set[asyncio.Task[None]] = set()
        """What is done beside the runs."""
        self._outbox = Outbox(link, ack_timeout=settings.ack_timeout)
        self._past = Past(link, timeout=settings.ack_timeout)
        self.followed = Followed(link, handlers.activity, ack_timeout=settings.ack_timeout)
        """Conversations of its channel's own."""
        self._lanes = Lanes(
            self._outbox, self._answer, most_at_once=settings.most_at_once, most_runs=settings.most_runs
        )

    async def drain(self, budget: float) -> None:
        """Get nothing new, finish what is in hand within `budget` seconds, and leave the rest to others."""
        self._stopping = True
        await self._say_drain()
        # What a gateway that knows of the drain gives nevertheless, nobody else is there to take.
        goes_on = self._settings.continues and "continue" in self._link.abilities
        hearing = asyncio.create_task(self.followed.close(budget))
        await self._lanes.drain(budget, late="drain" in self._link.abilities, asks=goes_on)
        await hearing

    async def abandon(self) -> None:
        """Cancel what is in hand; others get it."""
        await self.followed.close(0)
        await self._lanes.drain(0, late=False)

    # ---------------------------------------------------------------------------------------- the link's peer

    def hello(self) -> Frame:
        """The first frame of each connection."""
        capabilities = ["adopt", "continue"] if self._settings.continues else ["adopt"]
        if self._handlers.follows:
            capabilities += ["superseded", "edited"]
        hello: Frame = {"type": "hello", "protocol": PROTOCOL, "capabilities": capabilities}
        if self._settings.group is not None:
            hello["group"] = self._settings.group
        if self._settings.instance is not None:
            hello["instanceId"] = self._settings.instance
            if self._secret is not None:
                hello["instanceSecret"] = self._secret
        if watermarks := self._lanes.watermarks:
            hello["watermarks"] = watermarks
        return hello

    async def welcomed(self) -> None:
        """On each new connection: say what is in hand, and send again what nobody acknowledged."""
        if self.on_ready is not None:
            on_ready, self.on_ready = self.on_ready, None
            on_ready()
        self._parts.clear()
        await self._lanes.reconnected(told="adopt" in self._link.abilities)
        await self.followed.welcomed()
        if self._stopping or not self._handlers.answers:
            await self._say_drain()

    async def _say_drain(self) -> None:
        if "drain" in self._link.abilities:
            await self._link.send({"type": "drain"})

    def received(self, frame: Frame) -> None:
        """One frame off the socket."""
        conversation, inner = frame.get("conversationId"), frame.get("frame")
        if isinstance(conversation, str) and isinstance(inner, dict):
            if self._past.asks(conversation) or not self.followed.takes(conversation, inner):
                self._in_conversation(conversation, inner)
        elif frame.get("type") == "error":
            self._report(self._outbox.refused("", _data(frame)))
        elif frame.get("type") == "welcome" and isinstance(secret := _data(frame).get("instanceSecret"), str):
            self._secret = secret

    def _in_conversation(self, conversation: str, frame: Frame) -> None:
        kind = frame.get("type")
        if "seq" in frame and "run" not in frame and kind != "ack" and "adopt" in self._link.abilities:
            self._past.add(conversation, frame)  # a turn that is given names its run
        elif kind == "ack":
            self._outbox.acked(conversation, frame)
            self.followed.acked(conversation, frame)
        elif kind == "abort":
            self._lanes.stop(conversation, RunState.ABORTED, run=_name(frame), epoch=_epoch(frame))
        elif kind == "resume":
            answers = frame.get("answers")
            self._lanes.answered(conversation, answers if isinstance(answers, dict) else {}, run=_name(frame))
        elif kind == "genui_event":
            if not self._lanes.happened(conversation, str(frame.get("eventType")), frame.get("payload")):
                self._notice(conversation, frame)
        elif kind in _NOTICES:
            self._notice(conversation, frame)
        elif kind == "error":
            self._refused(conversation, frame)
        elif kind == "resume_part":
            self._part(conversation, frame)
        elif kind == "adopted":
            resume = resume_in(frame, self._parts_of(conversation, frame))
            self._lanes.adopted(conversation, _name(frame) or "", _epoch(frame), resume)
        elif (turn := turn_in(conversation, frame, self._parts_of(conversation, frame))) is not None:
            self._given(turn)

    def _given(self, turn: Turn) -> None:
        if self._handlers.answers or not self._outbox.may_refuse:
            self._lanes.give(turn)
        else:  # it only follows: others of its group are to have it
            self._background(self._outbox.refuse(turn))

    def _part(self, conversation: str, frame: Frame) -> None:
        name, epoch, frames = _name(frame), _epoch(frame), frame.get("frames")
        known = self._parts.get(conversation)
        if known is None or known[:2] != (name, epoch):
            known = self._parts[conversation] = (name, epoch, [])
        known[2].extend(frames if isinstance(frames, list) else ())

    def _parts_of(self, conversation: str, frame: Frame) -> list[Frame]:
        """What came ahead of this frame of its `resume`; what is of a run that moved on before its turn came is not."""
        if "resume" not in frame:
            return []
        name, epoch, frames = self._parts.pop(conversation, (None, None, []))
        return frames if (name, epoch) == (_name(frame), _epoch(frame)) else []

    def _refused(self, conversation: str, frame: Frame) -> None:
        if self.followed.refused(conversation, _data(frame)):
            return
        error = self._outbox.refused(conversation, _data(frame))
        if error is not None and error.code == "fenced" and _name(frame) is not None:
            self._lanes.stop(conversation, RunState.FENCED, run=_name(frame), epoch=_epoch(frame))
        else:
            self._report(error)

    def _report(self, error: TurnlogError | None) -> None:
        if error is not None:
            about = {} if error.conversation is None else {"conversation": error.conversation}
            log.warning(
                "turnlog: the gateway reports %s: %s (conversation %s)",
                error.code,
                error,
                error.conversation,
                extra=about,
            )

    # ------------------------------------------------------------------------------------------- the handlers

    def _notice(self, conversation: str, frame: Frame) -> None:
        self._background(self._noticed(conversation, frame))

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _noticed(self, conversation: str, frame: Frame) -> None:
        try:
            await self._handlers.frame(conversation, frame)
        except Exception:
            log.exception(
                "turnlog: the handler of frames failed on %s of %s",
                frame.get("type"),
                conversation,
                extra={"conversation": conversation},
            )

    async def _answer(self, run: Run) -> None:
        ANSWERED.set(run)  # in a task of the run's own
        with self._answering(run.turn) as run.traceparent:
            reply = Reply(run, self._outbox, self._past, flush_every=self._settings.flush_every)
            await self._handlers.answer(run.turn, reply)
            await reply.close()


def _data(frame: Frame) -> Frame:
    data = frame.get("data")
    return data if isinstance(data, dict) else {}


def _name(frame: Frame) -> str | None:
    run = frame.get("run")
    return run if isinstance(run, str) else None


def _epoch(frame: Frame) -> int | None:
    epoch = frame.get("runEpoch")
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None
