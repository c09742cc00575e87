"""What an agent's functions may look like, and how each shape is run and its answer said.

`async def` functions run in the event loop; plain functions in threads, one each. A thread cannot be stopped from
outside: `turn.cancelled` is set, and the run counts as ended only when the function has really returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from turnlog.errors import InvalidRequest
from turnlog.reply import Reply
from turnlog.turn import Turn
from turnlog.viewer import Viewed
from turnlog.wire import Frame, dump

Handler: TypeAlias = Callable[..., Any]
"""`(turn)` or, of an `async def`, `(turn, reply)`: an answer, pieces of one, or None."""
Answering: TypeAlias = Callable[[Turn, Reply], Awaitable[None]]


class Handlers:
    """The functions of one agent. One alone gets turns and invocations alike."""

    def __init__(self, *, most_threads: int) -> None:
        self._turns: Answering | None = None
        self._invocations: Answering | None = None
        self._frames: Callable[[str, Frame], Awaitable[None]] | None = None
        self._activity: Callable[[str, Viewed], Awaitable[None]] | None = None
        self._threads = Threads(most_threads)

    @property
    def bound(self) -> bool:
        """Whether the agent has anything to do."""
        return self.follows or self.answers

    @property
    def answers(self) -> bool:
        """Whether it answers what is given to it."""
        return self._turns is not None or self._invocations is not None

    @property
    def follows(self) -> bool:
        """Whether it hears what goes on in conversations that it follows."""
        return self._activity is not None

    def on_turn(self, handler: Handler) -> None:
        if self._turns is not None:
            raise RuntimeError("on_turn: this agent has a handler already")
        self._turns = _answering("on_turn", handler, self._threads, json=False)

    def on_invoke(self, handler: Handler) -> None:
        if self._invocations is not None:
            raise RuntimeError("on_invoke: this agent has a handler already")
        self._invocations = _answering("on_invoke", handler, self._threads, json=True)

    def on_frame(self, handler: Callable[[str, Frame], Awaitable[None]]) -> None:
        _check_hearer("on_frame", handler, self._frames, "frame")
        self._frames = handler

    def on_activity(self, handler: Callable[[str, Viewed], Awaitable[None]]) -> None:
        _check_hearer("on_activity", handler, self._activity, "viewed")
        self._activity = handler

    async def activity(self, conversation: str, viewed: Viewed) -> None:
        """What goes on in a conversation that it follows."""
        if self._activity is not None:
            await self._activity(conversation, viewed)

    async def frame(self, conversation: str, frame: Frame) -> None:
        """What a person's client says beside turns."""
        if self._frames is not None:
            await self._frames(conversation, frame)

    async def answer(self, turn: Turn, reply: Reply) -> None:
        """Run the function that `turn` is for, and say what it returns."""
        first, second = self._turns, self._invocations
        if turn.invocation is not None:
            first, second = second, first
        answering = first or second
        if answering is None:
            raise RuntimeError("a turn came, and this agent has only a handler of activity: @agent.on_turn adds one")
        await answering(turn, reply)


class Threads:
    """Runs plain functions, each in a thread of its own."""

    def __init__(self, most: int) -> None:
        # Threads are made when they are needed, up to as many as turns are answered at once: none waits for another.
        self._pool = ThreadPoolExecutor(max_workers=most, thread_name_prefix="turnlog")

    async def run(self, reply: Reply, work: Callable[[], Any]) -> Any:
        """What `work` returns. Cancelled: it is waited for, unless this process leaves the run to others anyway."""
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(self._pool, context.run, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not reply.left:
                await _ended(future)
            future.add_done_callback(_looked_at)
            raise


async def _ended(future: asyncio.Future[Any]) -> None:
    """Waits for the thread's real end, however often the waiting task is cancelled."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({future})


def _looked_at(future: asyncio.Future[Any]) -> None:
    """What a cancelled function ended with is nobody's business; asyncio would log an exception that nobody took."""
    if not future.cancelled():
        future.exception()


def _answering(name: str, handler: Handler, threads: Threads, *, json: bool) -> Answering:
    takes_reply = _check(name, handler)

    def call(turn: Turn, reply: Reply) -> Any:
        return handler(turn, reply) if takes_reply else handler(turn)

    async def pieces(turn: Turn, reply: Reply) -> None:
        await _stream(call(turn, reply), reply)

    async def coroutine(turn: Turn, reply: Reply) -> None:
        await _say(name, await call(turn, reply), reply, json=json)

    async def thread(turn: Turn, reply: Reply) -> None:
        await _say(name, await threads.run(reply, lambda: handler(turn)), reply, json=json)

    async def thread_of_pieces(turn: Turn, reply: Reply) -> None:
        async with reply.stream() as stream:
            loop = asyncio.get_running_loop()

            def work() -> None:
                made: Generator[str, None, None] = handler(turn)
                with contextlib.closing(made):
                    for piece in made:
                        if turn.cancelled.is_set():
                            return
                        asyncio.run_coroutine_threadsafe(stream.write(piece), loop).result()

            await threads.run(reply, work)

    if inspect.isasyncgenfunction(handler):
        return pieces
    if inspect.iscoroutinefunction(handler):
        return coroutine
    return thread_of_pieces if inspect.isgeneratorfunction(handler) else thread


def _check_hearer(name: str, handler: Callable[..., Any], there: object, what: str) -> None:
    if there is not None:
        raise RuntimeError(f"{name}: this agent has a handler already")
    if not inspect.iscoroutinefunction(handler) or len(inspect.signature(handler).parameters) != 2:
        raise TypeError(f"{name}: the handler must be an `async def` function and takes (conversation, {what})")


def _check(name: str, handler: Handler) -> bool:
    """Whether it takes `reply`. Raises `TypeError` for a shape that cannot be called."""
    if not callable(handler):
        raise TypeError(f"{name}: the handler must be a function, not {type(handler).__name__}")
    count = len(inspect.signature(handler).parameters)
    if count not in {1, 2}:
        raise TypeError(f"{name}: the handler takes (turn) or (turn, reply)")
    in_loop = inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler)
    if count == 2 and not in_loop:
        raise TypeError(
            f"{name}: the handler must be an `async def` function to use `reply`; a plain one runs in a thread, takes"
            " (turn), and returns or yields its answer"
        )
    return count == 2


async def _stream(answer: AsyncGenerator[Any, None], reply: Reply) -> None:
    async with contextlib.aclosing(answer) as pieces, reply.stream() as stream:
        async for piece in pieces:
            await stream.write(piece)


async def _say(name: str, answer: Any, reply: Reply, *, json: bool) -> None:
    if inspect.isawaitable(answer):
        answer = await answer  # of something that only looks like a plain function
    if answer is None:
        return
    if isinstance(answer, str):
        await reply.text(answer)
    elif isinstance(answer, AsyncGenerator):
        await _stream(answer, reply)
    elif not json:
        raise TypeError(f"the handler returned {type(answer).__name__}: return a str, or None and use `reply`")
    else:
        try:
            dump({"value": answer})
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{name}: the handler returned what JSON cannot hold: {error}") from error
        await reply.message("result", {"value": answer})
