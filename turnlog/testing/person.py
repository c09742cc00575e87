"""Who talks to an agent in a test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from turnlog.testing.answer import Answer, Asked, texts_of
from turnlog.testing.gateway import Conversation, Gateway, Run
from turnlog.wire import Frame

SLICE_S = 1.0


class Person:
    """One person in one conversation."""

    def __init__(self, gateway: Gateway, conversation: Conversation, name: str, patience: float) -> None:
        self._gateway = gateway
        self._conversation = conversation
        self._patience = patience
        self._seen = 0
        """Seq up to which an answer was returned."""
        self.name = name

    @property
    def conversation(self) -> str:
        """Its id."""
        return self._conversation.id

    @property
    def transcript(self) -> list[tuple[str, str]]:
        """All that was said so far, as `(who, text)`, without what was superseded."""
        said: list[tuple[str, list[Frame]]] = []
        for frame in self._conversation.frames:
            who = str(frame.get("from", "bot"))
            if frame.get("superseded"):
                continue
            if not said or said[-1][0] != who:
                said.append((who, []))
            said[-1][1].append(frame)
        return [(who, text) for who, frames in said for text in texts_of(frames) if text]

    @property
    def frames(self) -> list[Frame]:
        """All that was stored, also what was superseded (`superseded: true`)."""
        return list(self._conversation.frames)

    async def say(self, text: str = "", **more: Any) -> Answer:
        """Say something, and return what came of it: the whole answer, or what was said up to a question.

        `type`, `data`, `metadata`, `reply_to`: as in a turn. While a question is open, this answers it.
        """
        run = self.send(text, **more)
        return await self._answer_of(run)

    def send(
        self,
        text: str = "",
        *,
        type: str = "text",  # noqa: A002 - the protocol's word for it
        data: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        reply_to: str | None = None,
    ) -> Run:
        """Say something, and wait for nothing; `wait` waits."""
        return self._send(type, {"text": text} if data is None else dict(data), metadata=metadata, reply_to=reply_to)

    async def wait(self) -> Answer:
        """What came of the last thing that was said."""
        return await self._answer_of(self._last())

    async def wait_for(self, reached: Callable[[Answer], bool]) -> Answer:
        """What came of it so far, once it is as `reached` says."""
        run = self._last()
        await self._until(lambda: reached(self._shown(run)))
        return self._shown(run)

    async def stream(self, text: str) -> AsyncGenerator[str, None]:
        """Say something, and get the texts of the answer as they grow: pieces of streams, and whole messages."""
        run = self.send(text)
        while True:
            await self._until(lambda: bool(self._pieces()) or self._rests(run))
            pieces = self._pieces()
            if not pieces:
                self._seen = len(self._conversation.frames)
                return
            for seq, piece in pieces:
                self._seen = seq
                yield piece

    async def answer(self, answer: Any, *, ask: Asked | None = None) -> Answer:
        """Answer the open question (or `ask`) as a button or a form does, with any JSON, and return what came of it."""
        run = next((run for run in self._conversation.open_runs() if run.waiting), None)
        if run is None:
            raise AssertionError("not_interrupted: no question is open")
        return await self.answer_all({ask.id if ask is not None else run.waiting[0]: answer})

    async def answer_all(self, answers: Mapping[str, Any]) -> Answer:
        """Answer several open questions, by their ids: those of one run have to be answered together."""
        self._seen = len(self._conversation.frames)
        return await self._answer_of(self._gateway.answer(self._conversation, dict(answers)))

    async def abort(self) -> Answer:
        """Call off what is being answered."""
        run = self._last()
        self._gateway.stop(self._conversation, run, "aborted")
        return await self._answer_of(run)

    async def cancel(self, reason: str = "cancelled") -> Answer:
        """Call an invocation off as its caller does (`AgentProxy.cancel`), and return what came of it.

        One that waits for a person ends at once. One at work is told to stop, and ends when its handler has; what that
        says meanwhile counts, and so does its result. It may ask nobody any more: that ends it.
        """
        run = self._last()
        self._gateway.cancel(self._conversation, run, reason)
        await self._until(lambda: run.status is not None)
        return await self._answer_of(run)

    async def frame(self, frame: Mapping[str, Any]) -> None:
        """Say anything else that a client may: `genui_event`, `client_tools`, `survey` …"""
        for run in self._conversation.open_runs():
            if run.member is not None:
                run.member.deliver(self.conversation, dict(frame))
                return
        if self._gateway.members:
            self._gateway.members[0].deliver(self.conversation, dict(frame))

    async def invoke(
        self, text: str = "", *, data: Mapping[str, Any] | None = None, deadline: float = 300.0, streamed: bool = False
    ) -> Answer:
        """Call the agent as a program does, with `AgentProxy`. `deadline`: seconds; 0: none."""
        given: Frame = {"text": text} if data is None else {"text": text, "input": dict(data)}
        number = len(self._conversation.frames) + 1
        invocation = {"id": f"invocation-{number}", "deadlineMs": round(deadline * 1000), "streamed": streamed}
        run = self._send("text", given, invocation=invocation)
        if deadline:
            asyncio.get_running_loop().call_later(deadline, self._overdue, run)
        return await self._answer_of(run)

    # ------------------------------------------------------------------------------------------------- inside
    def _send(
        self,
        kind: str,
        data: Frame,
        *,
        metadata: Mapping[str, Any] | None = None,
        reply_to: str | None = None,
        invocation: Frame | None = None,
    ) -> Run:
        frame: Frame = {
            "type": kind,
            "from": "user",
            "data": data,
            "sender": {"id": self.name, "role": "user"},
            "meta": {"channel": "test"},
        }
        if metadata is not None:
            frame["metadata"] = dict(metadata)
        if reply_to is not None:
            frame["replyTo"] = {"id": reply_to}
        if invocation is not None:
            frame["invocation"] = invocation
        self._seen = len(self._conversation.frames) + 1
        return self._gateway.say(self._conversation, frame)

    def _overdue(self, run: Run) -> None:
        if run.status is None:
            self._gateway.stop(self._conversation, run, "timed out")

    def _last(self) -> Run:
        if not self._conversation.runs:
            raise AssertionError("nothing was said yet")
        return self._conversation.runs[-1]

    @staticmethod
    def _rests(run: Run) -> bool:
        """Nothing more comes of it by itself: it has ended, or asks."""
        return run.status is not None or bool(run.waiting)

    async def _answer_of(self, run: Run) -> Answer:
        await self._until(lambda: self._rests(run))
        answer = self._shown(run)
        if not run.waiting:
            self._seen = len(self._conversation.frames)
        return answer

    def _shown(self, run: Run) -> Answer:
        shown = [frame for frame in self._conversation.frames[self._seen :] if not frame.get("superseded")]
        asks = [
            Asked(ask, run.asks[ask]["data"]["payload"], tuple(run.asks[ask]["data"].get("actions", ())), run.asks[ask])
            for ask in run.waiting
        ]
        return Answer(run.status or "asking", tuple(shown), tuple(asks), run.error)

    def _pieces(self) -> list[tuple[int, str]]:
        found = []
        for frame in self._conversation.frames[self._seen :]:
            text = "".join(texts_of([frame]))
            if text and not frame.get("superseded") and frame.get("from") != "user":
                found.append((int(frame["seq"]), text))
        return found

    async def _until(self, reached: Callable[[], bool]) -> None:
        """In real time: a clock that is turned makes nobody less patient."""
        given_up = time.monotonic() + self._patience
        while True:
            try:
                async with asyncio.timeout(SLICE_S):
                    await self._gateway.until(reached)
            except TimeoutError:
                if time.monotonic() < given_up:
                    continue
                raise AssertionError(f"the agent said no more for {self._patience:g} s: {self._state()}") from None
            return

    def _state(self) -> str:
        runs = [f"{run.id} {run.status or 'open'}, {len(run.frames)} frames" for run in self._conversation.runs]
        return "; ".join(runs) or "no run"
