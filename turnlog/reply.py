"""How a handler answers: whole messages, streams, tools, components, questions, and checkpoints of where it is."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from turnlog.asks import AGAIN
from turnlog.errors import AskTimeout
from turnlog.outbox import Ack, Outbox
from turnlog.past import Past
from turnlog.run import Run, RunState
from turnlog.shown import Component, ToolCall
from turnlog.stream import Stream
from turnlog.viewer import Message
from turnlog.wire import NOT_TURNS, Frame, client_id

HASH_DIGITS = 16
"""Of a catalog's hash, by which a client knows that it has it: 64 bits, for the few catalogs of one agent."""

Action: TypeAlias = str | tuple[str, Any] | Mapping[str, Any]
"""A quick reply: a label, `(label, value)`, or the wire's `{label, value, url}`."""


class Reply:
    """Answers one turn. Everything sent through it names the turn's run: what comes too late is refused as a whole.

    Message ids follow from the turn and the order of sending, so that a handler that runs again sends the same ones.
    In a run that another process began (`turn.resume`), they go on behind the ones that it had sent.
    """

    def __init__(self, run: Run, outbox: Outbox, past: Past, *, flush_every: float) -> None:
        self._run = run
        self._outbox = outbox
        self._past = past
        self._flush_every = flush_every
        self._streams: list[Stream] = []
        self._components: list[Component] = []
        resume = run.turn.resume
        self._resumed = deque(each for each in resume.streams if not each.done) if resume is not None else deque()
        self._numbered = len(resume.streams) if resume is not None else 0
        """Streams of the run so far."""
        self._messages = _last_number(run)
        self._checkpoints = 0
        self._tools = 0
        self._others = 0

    @property
    def left(self) -> bool:
        """Whether this process leaves the run to others."""
        return self._run.state is RunState.LEFT

    async def text(
        self, text: str, *, actions: Sequence[Action] = (), metadata: Mapping[str, Any] | None = None
    ) -> Ack:
        """A text message; returns once it is stored. `actions`: quick replies, as labels or `{label, value}`."""
        return await self.message("text", {"text": text}, actions=actions, metadata=metadata)

    async def message(
        self,
        type: str,  # noqa: A002 - the protocol's word for it
        data: Mapping[str, Any],
        *,
        actions: Sequence[Action] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Ack:
        """A message of any type that viewers know: `buttons`, `card`, `image` … Returns once it is stored."""
        if type in NOT_TURNS or type == "checkpoint":
            raise ValueError(f"type: {type!r} is a frame of the protocol, not a message")
        await self._flush()
        self._messages += 1
        frame: Frame = {
            "type": type,
            "clientId": client_id(self._run.turn.id, f"m{self._messages}"),
            "data": dict(data),
        }
        if actions:
            frame["actions"] = [_action(each) for each in actions]
        if metadata:
            frame["metadata"] = dict(metadata)
        return await self._outbox.message(self._run, frame)

    def stream(self) -> Stream:
        """An answer that grows: ``async with reply.stream() as s: await s.write("…")``.

        In a run that another process began, first the streams that it left open: what is written goes on behind it.
        """
        if self._resumed:
            resumed = self._resumed.popleft()
            stream = Stream(self._run, self._outbox, number=0, flush_every=self._flush_every, resumed=resumed)
        else:
            self._numbered += 1
            stream = Stream(self._run, self._outbox, number=self._numbered, flush_every=self._flush_every)
        self._streams.append(stream)
        return stream

    # -------------------------------------------------------------------------------------------- questions
    async def ask(
        self,
        question: Any = None,
        *,
        actions: Sequence[Action] = (),
        id: str | None = None,  # noqa: A002 - its name everywhere
        timeout: float | None = None,
        ui: Mapping[str, Any] | None = None,
        event: str | None = None,
        tool: Mapping[str, Any] | None = None,
    ) -> Any:
        """Ask the person, wait, and return the answer: an action's value, the words that they wrote, or any JSON.

        `question`: a text, or any JSON that the person's client knows how to show. `ui`: `{component, props}` to answer
        with; `event`: the component's event that is the answer; `tool`: `{name, params}` of a tool of the client's.
        `timeout`: seconds, then `AskTimeout`; the server has its own, of a day unless the channel says otherwise.

        `id`: the question's name within the run. Where a run goes on in another process (an agent that `continues`),
        the question of the same name is not asked again: its answer is returned, now or when it comes. Unnamed
        questions are known by their order. An id out of `turn.resume.asks` is good too.
        """
        data = _question(question, [_action(each) for each in actions], ui, event, tool)
        name = id if id is not None else self._run.asks.next_name()
        await self._flush()
        while (answer := await self._answer_to(name, data, timeout)) is AGAIN:
            continue
        return answer

    async def _answer_to(self, name: str, data: Frame, timeout: float | None) -> Any:
        run, asks = self._run, self._run.asks
        ask_id = asks.wire_id(name, run.epoch)
        asked = asks.is_known(ask_id)
        future = asks.wait_for(ask_id, data.get("event"))
        try:
            if not asked:
                key = client_id(ask_id, "asked")
                await self._outbox.structured(run, {"type": "interrupt", "id": ask_id, "clientId": key, "data": data})
            if not future.done():
                await self._status("interrupted")
            answer = await self._waited(future, timeout)
        except TimeoutError:
            await self._resolve(ask_id, None)
            raise AskTimeout(f"nobody answered within {timeout:g} s", code="ask_timeout") from None
        finally:
            asks.forget(ask_id)
        if answer is not AGAIN:
            answer = _chosen(answer, data.get("actions", ()))
            await self._resolve(ask_id, answer)
        return answer

    async def _waited(self, future: asyncio.Future[Any], timeout: float | None) -> Any:
        """Its place goes to other turns meanwhile."""
        seat = self._run.seat
        if seat is None:
            raise AssertionError("a handler runs in a seat")
        seat.leave()
        try:
            async with asyncio.timeout(timeout):
                answer = await future
        except TimeoutError:
            await seat.take()
            raise
        await seat.take()
        return answer

    async def _resolve(self, ask_id: str, answer: Any) -> None:
        key = client_id(ask_id, "resolved")
        frame = {"type": "interrupt_resolved", "id": ask_id, "clientId": key, "data": {"answer": answer}}
        await self._outbox.structured(self._run, frame)
        await self._status("started")

    async def _status(self, status: str) -> None:
        await self._outbox.frame(self._run, {"type": "run", "data": {"status": status}})

    # ------------------------------------------------------------------------------------------ what is shown
    def tool(self, name: str, params: Mapping[str, Any] | None = None) -> ToolCall:
        """Show that a tool is used: ``async with reply.tool("get_order", {"id": 7}) as call: call.result = …``."""
        self._tools += 1
        return ToolCall(self._run, self._outbox, self._tools, name, params)

    async def skill(self, name: str, *, source: str | None = None, error: str | None = None) -> Ack | None:
        """Show that a skill was loaded, or, with `error`, that it could not be. `source`: `server` or `client`."""
        self._others += 1
        key = client_id(self._run.turn.id, f"k{self._others}")
        data: Frame = {"id": key, "name": name, "status": "loaded" if error is None else "error"}
        data |= {field: value for field, value in (("source", source), ("error", error)) if value is not None}
        return await self._outbox.structured(self._run, {"type": "skill", "clientId": key, "data": data})

    async def genui(self, component: str, props: Mapping[str, Any] | None = None) -> Component:
        """Show a component that the person's client knows; returns once it is stored. It can be updated."""
        await self._flush()
        shown = Component(self._run, self._outbox, len(self._components) + 1, component)
        self._components.append(shown)
        await shown.update(props or {})
        return shown

    async def event(self, name: str, *, text: str | None = None, value: Any = None) -> Ack | None:
        """A notice in the conversation. `text` is what clients show that do not know `name`."""
        await self._flush()
        self._others += 1
        data: Frame = {"name": name}
        data |= {field: each for field, each in (("text", text), ("value", value)) if each is not None}
        key = client_id(self._run.turn.id, f"e{self._others}")
        return await self._outbox.structured(self._run, {"type": "event", "clientId": key, "data": data})

    async def offer_components(self, components: Sequence[Mapping[str, Any]]) -> None:
        """Tell the person's clients which components this agent shows: `{name, template}` each. It may get lost; who
        comes later is told too."""
        await self._offer("genui_components", "components", components)

    async def offer_skills(self, skills: Sequence[Mapping[str, Any]]) -> None:
        """Tell the person's clients what this agent can do: `{name, description}` each; as `offer_components`."""
        await self._offer("skills", "skills", skills)

    async def _offer(self, kind: str, name: str, entries: Sequence[Mapping[str, Any]]) -> None:
        listed = [dict(each) for each in entries]
        digest = hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()
        await self._outbox.frame(self._run, {"type": kind, "hash": digest[:HASH_DIGITS], name: listed})

    async def typing(self, typing: bool = True) -> None:
        """Show, or hide, that an answer is being written. It may get lost."""
        await self._outbox.frame(self._run, {"type": "typing", "isTyping": typing})

    # -------------------------------------------------------------------------------------------- going on
    async def history(self) -> tuple[Message, ...]:
        """What was said in the conversation before this turn, by whomever, as whole messages, oldest first."""
        return await self._past.before(self._run.turn)

    async def checkpoint(self, state: Any) -> None:
        """Store where the handler is, as JSON: whoever goes on with this run gets it as `turn.resume.checkpoint`.

        The last one counts. What was streamed before it is sent first. Returns once it is stored; raises
        `InvalidRequest` above 256 KiB.
        """
        await self._flush()
        self._checkpoints += 1
        suffix = f"{self._run.epoch or 1}.c{self._checkpoints}"
        frame: Frame = {"type": "checkpoint", "clientId": client_id(self._run.turn.id, suffix), "data": state}
        await self._outbox.message(self._run, frame)

    async def close(self) -> None:
        """End what the handler left open, and the streams of an earlier owner that it did not take up."""
        while self._resumed:
            self.stream()
        for stream in self._streams:
            await stream.end()
        for component in self._components:
            await component.end()

    async def _flush(self) -> None:
        for stream in self._streams:
            await stream.push()


def _question(
    question: Any, actions: list[Frame], ui: Mapping[str, Any] | None, event: str | None, tool: Mapping[str, Any] | None
) -> Frame:
    """`interrupt`'s data. Channels show the payload's `title`."""
    payload = {"title": question} if isinstance(question, str) else {} if question is None else question
    data: Frame = {"payload": payload}
    if actions:
        data["actions"] = actions
    data |= {name: dict(value) for name, value in (("ui", ui), ("tool", tool)) if value is not None}
    if event is not None:
        data["event"] = event
    return data


def _action(action: Action) -> Frame:
    if isinstance(action, str):
        return {"label": action}
    if isinstance(action, tuple):
        label, value = action
        return {"label": label, "value": value}
    return dict(action)


def _chosen(answer: Any, actions: Sequence[Frame]) -> Any:
    """Of an answer that is an action's label, the action's value."""
    if not isinstance(answer, str):
        return answer
    values = {each["label"].strip().casefold(): each.get("value", each["label"]) for each in actions}
    return values.get(answer.strip().casefold(), answer)


def _last_number(run: Run) -> int:
    """The number of the last message that an earlier owner of the run sent; 0: none."""
    resume = run.turn.resume
    if resume is None:
        return 0
    pattern = re.compile(re.escape(client_id(run.turn.id, "m")) + r"(\d+)")
    found = (pattern.fullmatch(str(frame.frame.get("clientId"))) for frame in resume.frames)
    return max((int(each[1]) for each in found if each is not None), default=0)
