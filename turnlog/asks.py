"""The questions of one run: which are open, and what was answered.

A question has two names: the wire's, unique in the conversation, and the handler's, unique in its run. The wire's ends
in the handler's, so that a process that goes on with the run finds the questions that the lost one had asked.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from turnlog.resume import Resume
from turnlog.turn import Turn
from turnlog.wire import client_id

_NAME = re.compile(r"[A-Za-z0-9._:~-]{1,64}")


AGAIN = object()
"""In place of an answer: the run begins anew, and its question was closed; it is to be asked again."""


class Asks:
    """Answers come by the wire's id, or as the person's next message; either may come before the handler asks."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._open: dict[str, asyncio.Future[Any] | None] = {}
        """By wire id, in the order asked. None: known from an earlier owner, and no handler waits for it yet."""
        self._answers: dict[str, Any] = {}
        """Came, and were not taken yet."""
        self._events: dict[str, str] = {}
        """Of questions that a component's event answers: its name."""
        self._asked = 0
        self.learn(turn.resume)

    def next_name(self) -> str:
        """The name of a question that was given none: the same for a handler that runs again."""
        self._asked += 1
        return str(self._asked)

    def wire_id(self, name: str, epoch: int | None) -> str:
        """The id under which `name` was asked already, else the one under which it is to be."""
        if name in self._open or name in self._answers:
            return name  # it is called by the wire's own id, out of `turn.resume.asks`
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"id: {name!r} is neither an open question's nor 1 to 64 characters of A-Z a-z 0-9 . _ : ~ -"
            )
        pattern = re.compile(re.escape(client_id(self._turn.id, "")) + r"\d+\.ask\." + re.escape(name))
        for known in (*self._open, *self._answers):
            if pattern.fullmatch(known):
                return known
        return client_id(f"{self._turn.id}.{epoch or 1}", f"ask.{name}")

    def is_known(self, ask_id: str) -> bool:
        """Whether it is stored, as far as is known: open, or answered."""
        return ask_id in self._open or ask_id in self._answers

    def wait_for(self, ask_id: str, event: str | None = None) -> asyncio.Future[Any]:
        """Its answer, now or later, or `AGAIN`. `event`: the component's event that is an answer too."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if event is not None:
            self._events[ask_id] = event
        if ask_id in self._answers:
            future.set_result(self._answers[ask_id])
        self._open[ask_id] = future
        return future

    def forget(self, ask_id: str) -> None:
        """It was answered and closed, or nobody waits for it any more."""
        self._open.pop(ask_id, None)
        self._answers.pop(ask_id, None)
        self._events.pop(ask_id, None)

    # ------------------------------------------------------------------------------------------ from the gateway
    def learn(self, resume: Resume | None) -> None:
        """What the gateway says is stored of the run; None: it begins anew, with its questions closed."""
        if resume is None:
            for future in self._open.values():
                if future is not None and not future.done():
                    future.set_result(AGAIN)
            self._open.clear()
            self._answers.clear()
            return
        for ask in resume.asks:
            self._open.setdefault(ask.id, None)
        for ask_id, answer in resume.answers.items():
            self.answer(ask_id, answer)

    def answer(self, ask_id: str, answer: Any) -> None:
        """An answer came, by the question's id."""
        self._answers.setdefault(ask_id, answer)
        future = self._open.get(ask_id)
        if future is not None and not future.done():
            future.set_result(self._answers[ask_id])

    def happened(self, event: str, payload: Any) -> bool:
        """A component on the person's screen says that `event` happened: whether that answers a question."""
        if isinstance(payload, dict) and isinstance(payload.get("id"), str) and payload["id"] in self._open:
            self.answer(payload["id"], payload.get("answer"))
            return True
        waiting = (each for each, name in self._events.items() if name == event and each not in self._answers)
        ask_id = next(waiting, None)
        if ask_id is not None:
            self.answer(ask_id, payload)
        return ask_id is not None

    def answered_by(self, turn: Turn) -> None:
        """The person's next message is the answer: to the question that it replies to, else to the oldest one."""
        waiting = [ask_id for ask_id in self._open if ask_id not in self._answers]
        named = next((ask for ask in (turn.answers, turn.reply_to) if ask in waiting), None)
        target = named or next(iter(waiting), None)
        if target is not None:
            self.answer(target, turn.text or dict(turn.data))
