"""A gateway in memory, with the rules of the real one that an agent can tell: numbers, acks, fences, takeovers.

It has one group of members and no other routes. What is decided in the log there is decided here in the simplest way
that gives an agent the same frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from turnlog.testing.own import OwnConversation
from turnlog.testing.wire import Wire
from turnlog.viewer import CUT_OFF
from turnlog.wire import Frame

ENDS = {"finished": "finished", "error": "error", "aborted": "aborted"}
NUMBERED = frozenset({"genui", "tool_call", "skill", "interrupt", "interrupt_resolved", "event"})


@dataclass(slots=True)
class Run:
    """One turn being answered."""

    id: str
    turn: Frame
    member: Wire | None = None
    epoch: int = 1
    started: bool = False
    status: str | None = None
    """How it ended."""
    error: Frame | None = None
    frames: list[Frame] = field(default_factory=list)
    """Numbered ones, the person's answers among them."""
    asks: dict[str, Frame] = field(default_factory=dict)
    """Open ones: the interrupts."""
    answered: dict[str, Any] = field(default_factory=dict)
    """Answers that were given to the process, and that it has not said it has."""
    keys: dict[str, Frame] = field(default_factory=dict)
    """Acks by clientId."""
    checkpoint: Any = None
    cancelling: bool = False
    """Its process was told to stop, and has not said that it has."""

    @property
    def waiting(self) -> list[str]:
        """Questions without an answer."""
        return [ask for ask in self.asks if ask not in self.answered]

    def resume(self) -> Frame:
        """What a process that goes on with it is told."""
        given = [{"type": "resume", "answers": dict(self.answered)}] if self.answered else []
        told: Frame = {"frames": [*self.frames, *given], "interrupts": self.waiting}
        if self.checkpoint is not None:
            told["checkpoint"] = self.checkpoint
        return told


@dataclass(slots=True)
class Conversation:
    """A log, and its runs in order."""

    id: str
    frames: list[Frame] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    members: list[Wire] = field(default_factory=list)

    def number(self, frame: Frame) -> Frame:
        """Store it."""
        stored = {**frame, "seq": len(self.frames) + 1, "timestamp": 0}
        self.frames.append(stored)
        return stored

    def open_runs(self) -> Iterator[Run]:
        return (run for run in self.runs if run.status is None)


class Gateway:
    """Takes frames from members and turns from persons."""

    def __init__(self, *, continues: bool) -> None:
        self._continues = continues
        self.conversations: dict[str, Conversation] = {}
        self.own: dict[str, OwnConversation] = {}
        """Those of the agents' channel itself."""
        self.members: list[Wire] = []
        self._joined = 0
        self._waiters: list[asyncio.Future[None]] = []

    async def until(self, reached: Callable[[], bool]) -> None:
        """Returns once it is so; looks whenever something happened."""
        while not reached():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(future)
            await future

    def _tell(self) -> None:
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    # ------------------------------------------------------------------------------------------------ members
    def join(self, wire: Wire) -> str:
        """A process is there; its id as a member."""
        self._joined += 1
        if wire not in self.members:
            self.members.append(wire)
        waiting = [(c, run) for c in self.conversations.values() for run in c.open_runs() if run.member is None]
        for conversation, run in waiting:
            self._give(conversation, run)
        return f"member-{self._joined}"

    def leave(self, wire: Wire) -> None:
        """It is gone: its runs move, or wait for the next one."""
        if wire in self.members:
            self.members.remove(wire)
        for conversation in self.conversations.values():
            for run in list(conversation.open_runs()):
                if run.member is wire:
                    self._move(conversation, run)
        self._tell()

    def came_back(self, wire: Wire) -> None:
        """The same process, as another member: it keeps its runs, and is told what is stored of them."""
        for conversation in self.conversations.values():
            for run in list(conversation.open_runs()):
                if run.member is wire and run.cancelling:
                    self.stop(conversation, run, "aborted")  # the connection that it was told on is lost
                elif run.member is wire:
                    run.epoch += 1
                    told = {"type": "adopted", "run": run.id, "runEpoch": run.epoch, "resume": run.resume()}
                    wire.deliver(conversation.id, told)
                    if run.answered:  # given on the connection that was lost, perhaps
                        wire.deliver(conversation.id, {"type": "resume", "answers": dict(run.answered), "run": run.id})

    def _owner(self) -> Wire | None:
        fit = [wire for wire in self.members if wire.up]
        return next((wire for wire in fit if not wire.draining), fit[0] if fit else None)

    def _move(self, conversation: Conversation, run: Run) -> None:
        if run.cancelling or "invocation" in run.turn:
            self._end(conversation, run, "aborted" if run.cancelling else "owner gone")  # it is given to nobody else
            return
        run.epoch += 1
        run.member = None
        if not self._continues:
            said = [frame for frame in run.frames if "from" in frame and frame["from"] == "bot"]
            if said and not run.asks:
                self._end(conversation, run, "finished")
                return
            self._begin_anew(conversation, run)
        self._give(conversation, run)

    def _begin_anew(self, conversation: Conversation, run: Run) -> None:
        self._close(conversation, run)
        for frame in run.frames:
            frame["superseded"] = True
        run.frames, run.started, run.checkpoint = [], False, None
        run.keys.clear()

    @staticmethod
    def _close(conversation: Conversation, run: Run) -> None:
        """Closing frames for what the run left open."""
        streams = {frame["streamId"]: frame["done"] for frame in run.frames if frame["type"] == "genui"}
        end = {"type": "event", "name": "stream_done", "id": CUT_OFF}
        closing: list[Frame] = [
            {"type": "genui", "streamId": stream, "done": True, "chunk": end}
            for stream, done in streams.items()
            if not done
        ]
        closing += [{"type": "interrupt_resolved", "id": ask, "data": {"answer": None}} for ask in run.asks]
        run.frames += [conversation.number(frame) for frame in closing]
        run.asks.clear()
        run.answered.clear()

    def _give(self, conversation: Conversation, run: Run) -> None:
        run.member = self._owner()
        if run.member is None:
            return  # it waits for the next one that joins
        given = {**run.turn, "run": run.id, "runEpoch": run.epoch}
        if run.epoch > 1:
            given["turnSeq"] = given.pop("seq")
            if self._continues and (run.frames or run.checkpoint is not None):
                given["resume"] = run.resume()
        run.member.deliver(conversation.id, given)

    # ------------------------------------------------------------------------------------------------ persons
    def conversation(self, name: str) -> Conversation:
        return self.conversations.setdefault(name, Conversation(name))

    def say(self, conversation: Conversation, frame: Frame) -> Run:
        """A person's message: the run that it opens, or whose question it answers."""
        stored = conversation.number(frame)
        stored["id"] = f"{conversation.id}-{stored['seq']}"
        asking = [run for run in conversation.open_runs() if run.waiting]
        if asking:
            named = stored.get("replyTo", {}).get("id")
            run = next((run for run in asking if named in run.waiting), asking[0])
            ask = named if named in run.waiting else run.waiting[0]
            run.answered[ask] = stored["data"].get("text", stored["data"])
            run.frames.append({**stored, "answers": ask})
            if run.member is not None:
                run.member.deliver(conversation.id, {**stored, "run": run.id, "runEpoch": run.epoch})
            return run
        run = Run(f"{conversation.id}/{stored['seq']}/agents", stored)
        conversation.runs.append(run)
        self._give(conversation, run)
        return run

    def answer(self, conversation: Conversation, answers: dict[str, Any]) -> Run:
        """A person's `resume`. Raises `AssertionError` where the real gateway refuses."""
        run = next((run for run in conversation.open_runs() if set(answers) & set(run.waiting)), None)
        if run is None:
            raise AssertionError(f"not_interrupted: none of {sorted(answers)} is an open question")
        if missing := set(run.waiting) - set(answers):
            raise AssertionError(f"incomplete_resume: {sorted(missing)} of the same run are open too")
        run.answered |= answers
        if run.member is not None:
            run.member.deliver(
                conversation.id, {"type": "resume", "answers": answers, "run": run.id, "runEpoch": run.epoch}
            )
        return run

    def stop(self, conversation: Conversation, run: Run, status: str) -> None:
        """The run ends from outside, and its process is told."""
        member = run.member
        self._end(conversation, run, status)
        if member is not None:
            member.deliver(conversation.id, {"type": "abort", "run": run.id, "runEpoch": run.epoch})

    def cancel(self, conversation: Conversation, run: Run, reason: str) -> None:
        """A program calls its invocation off: one that has not begun, or waits for a person, ends at once; the process
        of one at work is told to stop, and it ends when that says so."""
        if run.status is not None or run.cancelling:
            return
        if not run.started or run.member is None or run.asks:
            self.stop(conversation, run, "aborted")
            return
        run.cancelling = True
        order = {"type": "abort", "run": run.id, "runEpoch": run.epoch, "reason": reason}
        run.member.deliver(conversation.id, order)

    def _end(self, conversation: Conversation, run: Run, status: str) -> None:
        if run.status is None:
            self._close(conversation, run)
            run.status = status
            self._tell()

    # ------------------------------------------------------------------------------------------------- frames
    def take(self, wire: Wire, sent: Frame) -> None:
        """A frame of a member."""
        own = self.own.get(str(sent.get("conversationId")))
        if own is not None:
            own.take(wire, sent["frame"])
            return
        conversation = self.conversations.get(str(sent.get("conversationId")))
        if conversation is None:
            if sent.get("type") == "drain":
                wire.draining = True
            return
        frame: Frame = sent["frame"]
        if frame["type"] == "sync":
            for each in conversation.frames[frame["watermark"] :]:
                wire.deliver(conversation.id, each)
            return
        run = next((run for run in conversation.runs if run.id == frame.get("run")), None)
        known = run.keys.get(str(frame.get("clientId"))) if run is not None else None
        if known is not None:
            wire.deliver(conversation.id, {**known, "duplicate": True})
            return
        epoch = frame.get("runEpoch", run.epoch if run is not None else 0)
        if run is None or run.status is not None or run.member is not wire or epoch != run.epoch:
            if frame.get("data", {}) != {"status": "aborted"}:  # that it has stopped is no news
                self._fence(wire, conversation, frame)
            return
        self._taken(wire, conversation, run, frame)
        self._tell()

    @staticmethod
    def _fence(wire: Wire, conversation: Conversation, frame: Frame) -> None:
        data = {"code": "fenced", "message": "the run is not this member's", "clientId": frame.get("clientId")}
        wire.deliver(conversation.id, {"type": "error", "data": data})
        wire.deliver(conversation.id, {"type": "abort", "run": frame.get("run")})

    def _taken(self, wire: Wire, conversation: Conversation, run: Run, frame: Frame) -> None:
        kind = frame["type"]
        run.started = True
        if kind == "interrupt" and run.cancelling:  # nobody is asked what would not be heard
            self._fence(wire, conversation, frame)
            self._end(conversation, run, "aborted")
        elif kind == "run":
            status = frame["data"]["status"]
            if status in ENDS:
                self._end(conversation, run, ENDS[status])
        elif kind == "error":
            run.error = frame["data"]
        elif kind == "checkpoint":
            run.checkpoint = frame["data"]
            self._ack(wire, conversation, run, frame, None)
        elif kind not in {"read", "typing", "genui_components", "skills"}:
            self._store(wire, conversation, run, frame)

    def _store(self, wire: Wire, conversation: Conversation, run: Run, frame: Frame) -> None:
        shown = {name: value for name, value in frame.items() if name not in {"run", "runEpoch", "traceparent"}}
        if frame["type"] not in NUMBERED or frame["type"] == "event":
            shown |= {"id": f"{conversation.id}-{len(conversation.frames) + 1}", "from": "bot"}
        stored = conversation.number(shown)
        run.frames.append(stored)
        if frame["type"] == "interrupt":
            run.asks[frame["id"]] = stored
        elif frame["type"] == "interrupt_resolved":
            run.asks.pop(frame["id"], None)
            run.answered.pop(frame["id"], None)
        self._ack(wire, conversation, run, frame, stored)

    @staticmethod
    def _ack(wire: Wire, conversation: Conversation, run: Run, frame: Frame, stored: Frame | None) -> None:
        key = frame.get("clientId")
        if key is None:
            return
        place = {"seq": stored["seq"]} if stored is not None else {}
        ack = {"type": "ack", "clientId": key, "id": str(key), "timestamp": 0, **place}
        run.keys[str(key)] = ack
        wire.deliver(conversation.id, ack)
