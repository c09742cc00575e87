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
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from turnlog.backoff import Backoff
from turnlog.handlers import Handler, Handlers
from turnlog.link import Link
from turnlog.outbox import Ack
from turnlog.process import Process, Settings
from turnlog.signals import stopping
from turnlog.tokens import CallableToken, FixedToken, SecretToken, TokenSource
from turnlog.tracing import answering, untraced
from turnlog.viewer import Viewed
from turnlog.wire import Frame, base_url

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

INSTANCE = re.compile(r"[A-Za-z0-9._:~-]{1,128}")
H = TypeVar("H", bound=Handler)
F = TypeVar("F", bound=Callable[[str, Frame], Awaitable[None]])
A = TypeVar("A", bound=Callable[[str, Viewed], Awaitable[None]])


class Agent:
    """One agent process.

    `url`: a gateway's address, or several, tried in turn. One credential: `channel_secret` (exchanged for short-lived
    tokens), `token`, or `get_token`, called for each connection. `group`: processes of one group share the turns; each
    group of a channel answers each turn. Without one, all connections of the channel share its implicit group.

    `drain_budget`: seconds that `run` gives running handlers on SIGTERM. `ack_timeout`: seconds until a message that
    nobody acknowledged raises `AckTimeout`, offline time included. `flush_every`: seconds within which the pieces of a
    stream travel as one chunk. `most_at_once`: turns answered at the same time, over all conversations; the others wait
    here. `most_runs`: turns in this process's hands, waiting ones too; beyond, it refuses, and others of the group get
    them: an invocation that all refuse fails as `AgentBusy`, a turn waits (or not, by the channel's `busy`).

    `continues`: the handler looks at `turn.resume`, and goes on where another process of the group was lost in the
    middle of its answer. Without it such a turn is answered from the start, and what was said of it is marked as such.

    `instance`: a name for this process (up to 128 of ``A-Z a-z 0-9 . _ : ~ -``). When its connection is lost, what it
    has in hand is held for it for the channel's grace (30 s) instead of going to another process at once: for work that
    is long, or must not be done twice. What it costs: of a process that died, the others learn after the grace only. A
    process that starts anew is another one, whatever its name; one name, one process at a time.

    `tracing`: each handler runs in an OpenTelemetry span, in the trace of its turn; True: of the program's own tracer
    provider, else of this one. Needs the extra `tracing`.
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
        most_runs: int | None = None,
        continues: bool = False,
        instance: str | None = None,
        tracing: TracerProvider | bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        urls = [url] if isinstance(url, str) else list(url)
        if not urls:
            raise ValueError("url: name at least one gateway")
        if most_at_once < 1:
            raise ValueError("most_at_once: at least 1")
        if most_runs is not None and most_runs < 1:
            raise ValueError("most_runs: at least 1, or None")
        if instance is not None and INSTANCE.fullmatch(instance) is None:
            raise ValueError("instance: 1 to 128 characters of A-Z a-z 0-9 . _ : ~ -")
        self.settings = Settings(
            group, drain_budget, ack_timeout, flush_every, most_at_once, continues, most_runs, instance
        )
        self.handlers = Handlers(most_threads=most_at_once)
        self._task: asyncio.Task[None] | None = None
        self._link = Link(
            [base_url(each) for each in urls],
            _token_source(channel_secret, token, get_token),
            backoff=backoff or Backoff(),
        )
        self.answering = untraced if tracing is False else answering(None if tracing is True else tracing)
        """What each handler runs in."""
        self.process = Process(self.settings, self.handlers, self._link, answering=self.answering)
        """Which `follow` and `say` are for."""

    @property
    def group(self) -> str | None:
        """The group that its processes form; None: the channel's own."""
        return self.settings.group

    def on_turn(self, handler: H) -> H:
        """Register the handler, called for each turn: ``async def answer(turn)`` or ``async def answer(turn, reply)``.

        It returns the answer as a string, or uses `reply`, or yields pieces, which are streamed. It is cancelled when
        the turn is not this process's to answer any more. A plain function (``def answer(turn)``) runs in a thread.
        """
        self.handlers.on_turn(handler)
        return handler

    def on_invoke(self, handler: H) -> H:
        """Register the handler of invocations, which programs send by `AgentProxy`: shapes as for `on_turn`.

        It may also return anything that JSON holds. Without one, `on_turn`'s handler gets them (`turn.invocation`), and
        where there is only this one, it gets the turns too.
        """
        self.handlers.on_invoke(handler)
        return handler

    def on_frame(self, handler: F) -> F:
        """Register ``async def heard(conversation, frame)``: what a person's client says that is no turn.

        `client_tools`, `client_skills`, `survey`, and each `genui_event` that answers no question of `reply.ask`.
        """
        self.handlers.on_frame(handler)
        return handler

    def on_activity(self, handler: A) -> A:
        """Register ``async def seen(conversation, viewed)``: all that goes on in conversations that it follows.

        Each numbered frame once and in order, but for what this process said itself; what became of those (edited,
        superseded; the last edit perhaps again after a lost connection); and, as it happens, who types, who is there,
        what was read. `viewed.seen` is what it is (`turnlog.seen`). One at a time per conversation; for a
        slow handler what came meanwhile is read again, but for what is shown once.
        """
        self.handlers.on_activity(handler)
        return handler

    def follow(self, conversation: str, *, after: int = 0) -> None:
        """Have `on_activity`'s handler told of a conversation of this agent's own channel, behind `after`.

        Before or after the start, over lost connections, until `unfollow`. Whoever starts anew says where it was:
        `after` is the `seq` of what it has dealt with. In conversations whose turns are *given* to this agent there
        is nothing to follow.
        """
        if not self.handlers.follows:
            raise RuntimeError("register a handler with @agent.on_activity first")
        if after < 0:
            raise ValueError("after: a seq, or 0")
        self.process.followed.follow(conversation, after)

    def unfollow(self, conversation: str) -> None:
        """Hear no more of it."""
        self.process.followed.unfollow(conversation)

    async def say(self, conversation: str, text: str, *, key: str | None = None) -> Ack:
        """Say something in a conversation of this agent's own channel, as no answer to anything; returns once it is
        stored, once per `key` (1 to 128 of ``A-Z a-z 0-9 . _ : ~ -``). What answers a turn is said by `reply`.
        """
        if key is not None and INSTANCE.fullmatch(key) is None:
            raise ValueError("key: 1 to 128 characters of A-Z a-z 0-9 . _ : ~ -")
        frame: Frame = {"type": "text", "clientId": key or uuid.uuid4().hex, "data": {"text": text}}
        return await self.process.followed.say(conversation, frame)

    @property
    def member(self) -> str | None:
        """Id under which the log knows this process now, as a member of its group; another one after a reconnect."""
        return self._link.connection

    async def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT, `stop()`, or a refusal for good (`Unauthorized`); then drain and return.
        Several agents of one event loop stop at the same signal.

        `on_ready` is called once, when a gateway has welcomed this process: where a supervisor is to be told.
        """
        self.process.on_ready = on_ready
        stops: list[asyncio.Task[None]] = []
        with stopping(lambda: stops.append(asyncio.create_task(self.stop()))):
            await self.start(wait=False)
            await self._served()
        await asyncio.gather(*stops)

    async def start(self, *, wait: bool = True) -> None:
        """Begin to serve in the background; `wait`: return once the gateway has welcomed this process."""
        if not self.handlers.bound:
            raise RuntimeError("register a handler with @agent.on_turn, @agent.on_invoke or @agent.on_activity first")
        if self._task is not None:
            raise RuntimeError("the agent was started before; make a new one")
        self._task = asyncio.create_task(self._link.run(self.process))
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
        await self.process.drain(self.settings.drain_budget if budget is None else budget)
        await self._link.close()
        await self._served()

    async def _served(self) -> None:
        if self._task is None:
            return
        try:
            await asyncio.shield(self._task)
        finally:
            # Cancelled or refused for good: handlers end too. After `stop()` there are none.
            await self.process.abandon()
            await self._link.close()


def _token_source(
    channel_secret: str | None, token: str | None, get_token: Callable[[], Awaitable[str]] | None
) -> TokenSource:
    if sum(each is not None for each in (channel_secret, token, get_token)) != 1:
        raise ValueError("pass exactly one of channel_secret, token and get_token")
    if channel_secret is not None:
        return SecretToken(channel_secret, scope="channel")
    return FixedToken(token) if token is not None else CallableToken(get_token)  # type: ignore[arg-type]
