"""A conversation of the agents' channel itself, in memory: its agent is given nothing of it; it follows, and speaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from turnlog.testing.answer import texts_of
from turnlog.testing.wire import Wire
from turnlog.wire import Frame

SLICE_S = 0.02
SETTLED = 10
"""Rounds of the event loop in which a frame arrives and a handler that waits for nothing is through with it."""
_SYSTEM = {"id": "system", "role": "system"}


class OwnConversation:
    """What other people and other agents say in it, and what the agent makes of that.

    As with a real gateway: each connection that asked is shown every numbered frame once and in order, but for what it
    said itself; what becomes of them; and, as it happens, who types.
    """

    def __init__(self, id: str, heard: Callable[[], bool], patience: float) -> None:  # noqa: A002 - its name everywhere
        self.id = id
        self.closed = False
        self._heard = heard
        """Whether every process is through with what it was shown."""
        self._patience = patience
        self._frames: list[Frame] = []
        self._by: list[tuple[Wire, int] | None] = []
        """Of each, the connection that said it."""
        self._followers: dict[Wire, int] = {}
        """Who asked, and on which of its connections."""
        self._acks: dict[str, Frame] = {}

    @property
    def frames(self) -> list[Frame]:
        """All that is stored."""
        return [dict(frame) for frame in self._frames]

    @property
    def transcript(self) -> list[tuple[str, str]]:
        """All that was said, as `(who, text)`."""
        return [(str(frame["sender"]["id"]), text) for frame in self._frames for text in texts_of([frame]) if text]

    # --------------------------------------------------------------------------------------------------- the others
    async def say(self, text: str = "", *, who: str = "person", role: str = "user", **more: Any) -> int:
        """Somebody says something; returns its seq once all who follow have heard it. `role`: `user`, or `bot` for
        another agent. More: as `send`."""
        seq = self.send(text, who=who, role=role, **more)
        await self.heard()
        return seq

    def send(
        self,
        text: str = "",
        *,
        who: str = "person",
        role: str = "user",
        type: str = "text",  # noqa: A002 - the protocol's word for it
        data: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        """The same, and waits for nobody."""
        frame: Frame = {"type": type, "from": "user" if role == "user" else "bot"}
        frame |= {"data": {"text": text} if data is None else dict(data), "sender": {"id": who, "role": role}}
        if role == "user":
            frame["meta"] = {"channel": "test", "participant": {"id": who}}
        if metadata is not None:
            frame["metadata"] = dict(metadata)
        return int(self._store(frame, None)["seq"])

    def edit(self, seq: int, text: str) -> None:
        """A message says something else from now on."""
        stored = self._frames[seq - 1]
        stored["data"] = {"text": text}
        self._show({"type": "edited", "data": {"messageId": stored["id"], "seq": seq, "data": stored["data"]}}, None)

    def supersede(self, *seqs: int) -> None:
        """Another process of another agent says that part again."""
        for seq in seqs:
            self._frames[seq - 1]["superseded"] = True
        self._show({"type": "superseded", "data": {"seqs": list(seqs)}}, None)

    def typing(self, typing: bool = True, *, who: str = "person") -> None:
        """Somebody writes, or no longer."""
        self._show({"type": "typing", "isTyping": typing, "sender": {"id": who, "role": "user"}}, None)

    def close(self) -> None:
        """Nobody may say anything any more."""
        self.closed = True
        data = {"event": "conversation_closed", "status": "closed", "reason": "manual"}
        self._store({"type": "conversationUpdate", "from": "bot", "sender": _SYSTEM, "data": data}, None)

    async def heard(self) -> None:
        """Returns once all who follow are through with what they were shown. Raises `AssertionError` when it takes
        longer than the harness's patience, in real time."""
        given_up = time.monotonic() + self._patience
        while True:
            for _ in range(SETTLED):
                await asyncio.sleep(0)
            if self._heard():
                return
            if time.monotonic() > given_up:
                raise AssertionError(f"the handler of activity is not through after {self._patience:g} s")
            await asyncio.to_thread(time.sleep, SLICE_S)  # real time: the loop's clock is the test's

    # ---------------------------------------------------------------------------------------------------- the agent
    def take(self, wire: Wire, frame: Frame) -> None:
        """A frame of a member."""
        if frame["type"] == "sync":
            self._sync(wire, int(frame["watermark"]))
            return
        key = frame.get("clientId")
        if key is not None and key in self._acks:
            wire.deliver(self.id, {**self._acks[key], "duplicate": True})
        elif self.closed:
            self._refuse(wire, "conversation_closed", "the conversation is closed", clientId=key)
        elif "from" not in frame and frame["type"] not in {"read", "typing", "run"}:
            said = {name: value for name, value in frame.items() if name not in {"run", "runEpoch", "traceparent"}}
            self._followers.setdefault(wire, wire.generation)
            stored = self._store({**said, "from": "bot", "sender": {"id": "agent", "role": "bot"}}, wire)
            if key is not None:
                ack = {"type": "ack", "clientId": key, "id": stored["id"], "seq": stored["seq"], "timestamp": 0}
                self._acks[key] = ack
                wire.deliver(self.id, ack)

    def _sync(self, wire: Wire, watermark: int) -> None:
        if watermark > len(self._frames):
            rule = f"watermark: {watermark} is above the conversation's head {len(self._frames)}"
            self._refuse(wire, "invalid_watermark", rule, frameType="sync")
            return
        self._followers[wire] = wire.generation
        superseded = [frame["seq"] for frame in self._frames[:watermark] if frame.get("superseded")]
        if superseded:
            wire.deliver(self.id, {"type": "superseded", "data": {"seqs": superseded}})
        for frame, by in zip(self._frames[watermark:], self._by[watermark:], strict=True):
            if by != (wire, wire.generation):
                wire.deliver(self.id, frame)

    def _store(self, frame: Frame, by: Wire | None) -> Frame:
        seq = len(self._frames) + 1
        stored = {"id": f"{self.id}-{seq}", **frame, "seq": seq, "timestamp": 0}
        self._frames.append(stored)
        self._by.append(None if by is None else (by, by.generation))
        self._show(stored, by)
        return stored

    def _show(self, frame: Frame, by: Wire | None) -> None:
        for wire, generation in self._followers.items():
            if wire is not by and wire.generation == generation:
                wire.deliver(self.id, frame)

    def _refuse(self, wire: Wire, code: str, message: str, **more: Any) -> None:
        wire.deliver(self.id, {"type": "error", "data": {"code": code, "message": message, **more}})
