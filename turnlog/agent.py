"""An agent: answers the turns of a channel that its group, and within it this process, owns.

    agent = Agent("https://gateway.example", channel_secret=os.environ["AGENTS_SECRET"], group="support")

    @agent.on_turn
    async def answer(turn):
        return f"You said: {turn.text}"

    asyncio.run(agent.run())

Run as many processes of it as you like: each turn is given to exactly one of them, and moves when that one goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeAlias

from turnlog.backoff import Backoff
from turnlog.errors import TurnlogError
from turnlog.lanes import Lanes
from turnlog.link import Link
from turnlog.outbox import Outbox
from turnlog.reply import Reply
from turnlog.resume import resume_in
from turnlog.run import Run, RunState
from turnlog.tokens import CallableToken, FixedToken, SecretToken, TokenSource
from turnlog.turn import Turn, turn_in
from turnlog.wire import PROTOCOL, Frame, base_url

log = logging.getLogger("turnlog")

Answer: TypeAlias = Awaitable[str | None] | AsyncGenerator[str, None]
Handler: TypeAlias = Callable[[Turn], Answer] | Callable[[Turn, Reply], Answer]


class Agent:
    """One agent process.

    `url`: a gateway's address, or several, tried in turn. One credential: `channel_secret` (exchanged for short-lived
    tokens), `token`, or `get_token`, called for each connection. `group`: processes of one group share the turns; each
    group of a channel answers each turn. Without one, all connections of the channel share its implicit group.

    `drain_budget`: seconds that `run` gives running handlers on SIGTERM. `ack_timeout`: seconds until a message that
    nobody acknowledged raises `AckTimeout`, offline time included. `flush_every`: seconds within which the pieces of a
    stream travel as one chunk. `most_at_once`: turns answered at the same time, over all conversations.

    `continues`: the handler looks at `turn.resume`, and goes on where another process of the group was lost in the
    middle of its answer. Without it such a turn is answered from the start, and what was said of it is marked as such.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        channel_secret: str | None = None,
        token: str | None = None,
        get_token: Callable[[], Awaitable[str]] | None = None,
        group: str | None = None,
        drain_budget: float = 10.0,
        ack_timeout: float = 30.0,
        flush_every: float = 0.1,
        most_at_once: int = 200,
        continues: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        urls = [url] if isinstance(url, str) else list(url)
        if not urls:
            raise ValueError("url: name at least one gateway")
        self.group = group
        self._continues = continues
        self._stopping = False
        self._parts: dict[str, tuple[str | None, int | None, list[Frame]]] = {}
        """Per conversation: the run that a turn to come goes on with, its epoch, the first frames of its `resume`."""
        self._drain_budget = drain_budget
        self._flush_every = flush_every
        self._handler: Callable[[Turn, Reply], Answer] | None = None
        self._task: asyncio.Task[None] | None = None
        self._on_ready: Callable[[], None] | None = None
        self._link = Link(
            [base_url(each) for each in urls],
            _token_source(channel_secret, token, get_token),
            self,
            backoff=backoff or Backoff(),
        )
        self._outbox = Outbox(self._link, ack_timeout=ack_timeout)
        self._lanes = Lanes(self._outbox, self._answer, most_at_once=most_at_once)

    def on_turn(self, handler: Handler) -> Handler:
        """Register the handler, called for each turn: ``async def answer(turn)`` or ``async def answer(turn, reply)``.

        It returns the answer as a string, or uses `reply`, or yields pieces, which are streamed. It is cancelled when
        the turn is not this process's to answer any more.
        """
        if self._handler is not None:
            raise RuntimeError("on_turn: this agent has a handler already")
        self._handler = _with_reply(handler)
        return handler

    @property
    def member(self) -> str | None:
        """Id under which the log knows this process now, as a member of its group; another one after a reconnect."""
        return self._link.connection

    async def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT, `stop()`, or a refusal for good (`Unauthorized`); then drain and return.

        `on_ready` is called once, when a gateway has welcomed this process: where a supervisor is to be told.
        """
        self._on_ready = on_ready
        stopping: list[asyncio.Task[None]] = []
        with _signals(lambda: stopping.append(asyncio.create_task(self.stop()))):
            await self.start(wait=False)
            await self._served()
        await asyncio.gather(*stopping)

    async def start(self, *, wait: bool = True) -> None:
        """Begin to serve in the background; `wait`: return once the gateway has welcomed this process."""
        if self._handler is None:
            raise RuntimeError("register a handler with @agent.on_turn first")
        if self._task is not None:
            raise RuntimeError("the agent was started before; make a new one")
        self._task = asyncio.create_task(self._link.run())
        if not wait:
            return
        up = asyncio.create_task(self._link.wait_up(None))
        try:
            await asyncio.wait({up, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if self._task.done():
            await self._task

    async def stop(self, budget: float | None = None) -> None:
        """Drain: get nothing new, finish what is in hand within `budget` seconds, and leave the rest to others."""
        self._stopping = True
        await self._say_drain()
        # What a gateway that knows of the drain gives nevertheless, nobody else is there to take.
        late = "drain" in self._link.abilities
        await self._lanes.drain(self._drain_budget if budget is None else budget, late=late)
        await self._link.close()
        await self._served()

    async def _served(self) -> None:
        if self._task is None:
            return
        try:
            await asyncio.shield(self._task)
        finally:
            # Cancelled or refused for good: handlers end too. After `stop()` there are none.
            await self._lanes.drain(0, late=False)
            await self._link.close()

    # ---------------------------------------------------------------------------------------- the link's peer

    def hello(self) -> Frame:
        """The first frame of each connection."""
        capabilities = ["adopt", "continue"] if self._continues else ["adopt"]
        hello: Frame = {"type": "hello", "protocol": PROTOCOL, "capabilities": capabilities}
        if self.group is not None:
            hello["group"] = self.group
        if watermarks := self._lanes.watermarks:
            hello["watermarks"] = watermarks
        return hello

    async def welcomed(self) -> None:
        """On each new connection: say what is in hand, and send again what nobody acknowledged."""
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()
        self._parts.clear()
        await self._lanes.reconnected(told="adopt" in self._link.abilities)
        if self._stopping:
            await self._say_drain()

    async def _say_drain(self) -> None:
        if "drain" in self._link.abilities:
            await self._link.send({"type": "drain"})

    def received(self, frame: Frame) -> None:
        """One frame off the socket."""
        conversation, inner = frame.get("conversationId"), frame.get("frame")
        if isinstance(conversation, str) and isinstance(inner, dict):
            self._in_conversation(conversation, inner)
        elif frame.get("type") == "error":
            self._report(self._outbox.refused("", _data(frame)))

    def _in_conversation(self, conversation: str, frame: Frame) -> None:
        kind = frame.get("type")
        if kind == "ack":
            self._outbox.acked(conversation, frame)
        elif kind == "abort":
            self._lanes.stop(conversation, RunState.ABORTED, run=_name(frame), epoch=_epoch(frame))
        elif kind == "error":
            self._refused(conversation, frame)
        elif kind == "resume_part":
            self._part(conversation, frame)
        elif kind == "adopted":
            resume = resume_in(frame, self._parts_of(conversation, frame))
            self._lanes.adopted(conversation, _name(frame) or "", _epoch(frame), resume)
        elif (turn := turn_in(conversation, frame, self._parts_of(conversation, frame))) is not None:
            self._lanes.give(turn)

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
        error = self._outbox.refused(conversation, _data(frame))
        if error is not None and error.code == "fenced" and _name(frame) is not None:
            self._lanes.stop(conversation, RunState.FENCED, run=_name(frame), epoch=_epoch(frame))
        else:
            self._report(error)

    def _report(self, error: TurnlogError | None) -> None:
        if error is not None:
            log.warning("turnlog: the gateway reports %s: %s (conversation %s)", error.code, error, error.conversation)

    # ------------------------------------------------------------------------------------------- the handler

    async def _answer(self, run: Run) -> None:
        if self._handler is None:
            raise AssertionError("start() checks that there is a handler")
        reply = Reply(run, self._outbox, flush_every=self._flush_every)
        answer = self._handler(run.turn, reply)
        if isinstance(answer, AsyncGenerator):
            async with contextlib.aclosing(answer) as pieces, reply.stream() as stream:
                async for piece in pieces:
                    await stream.write(piece)
        else:
            text = await answer
            if isinstance(text, str):
                await reply.text(text)
            elif text is not None:
                raise TypeError(f"the handler returned {type(text).__name__}: return a str, or None and use `reply`")
        await reply.close()


def _token_source(
    channel_secret: str | None, token: str | None, get_token: Callable[[], Awaitable[str]] | None
) -> TokenSource:
    if sum(each is not None for each in (channel_secret, token, get_token)) != 1:
        raise ValueError("pass exactly one of channel_secret, token and get_token")
    if channel_secret is not None:
        return SecretToken(channel_secret, scope="channel")
    return FixedToken(token) if token is not None else CallableToken(get_token)  # type: ignore[arg-type]


def _with_reply(handler: Handler) -> Callable[[Turn, Reply], Answer]:
    if not (inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler)):
        raise TypeError("on_turn: the handler must be an `async def` function")
    takes: Any = handler
    count = len(inspect.signature(handler).parameters)
    if count not in {1, 2}:
        raise TypeError("on_turn: the handler takes (turn) or (turn, reply)")
    return takes if count == 2 else lambda turn, _reply: takes(turn)


@contextlib.contextmanager
def _signals(stop: Callable[[], object]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop` once; the second one acts as if nothing were installed."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not hasattr(loop, "add_signal_handler"):
        yield
        return

    def first() -> None:
        restore()
        stop()

    def restore() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        restore()


def _data(frame: Frame) -> Frame:
    data = frame.get("data")
    return data if isinstance(data, dict) else {}


def _name(frame: Frame) -> str | None:
    run = frame.get("run")
    return run if isinstance(run, str) else None


def _epoch(frame: Frame) -> int | None:
    epoch = frame.get("runEpoch")
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None
