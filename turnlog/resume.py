"""What a run that another process began had got to, for the one that goes on with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnlog.seen import Ask, ask_in
from turnlog.viewer import Viewed, viewed_in
from turnlog.wire import Frame


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed text as far as it was stored. `done`: it is whole; else it is open, and `reply.stream()` goes on."""

    id: str
    text: str
    done: bool


@dataclass(frozen=True, slots=True)
class Resume:
    """What the lost owner of a run had done: all of it is in the conversation's log, and stays there.

    A handler that is given one goes on behind it: it sends only what is missing.
    """

    frames: tuple[Viewed, ...] = ()
    """All that was stored of this run, as viewers got it, in order: messages, stream chunks, tool calls, questions, and
    the person's answers to them."""
    checkpoint: Any = None
    """What the last `reply.checkpoint(…)` stored; None: there was none."""
    asks: tuple[Ask, ...] = ()
    """Questions that nobody has answered yet."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """What questions of the run were answered with, by the question's id; of an answer in words, its text."""
    streams: tuple[Streamed, ...] = ()
    """The streamed texts, in the order in which they began."""

    @property
    def text(self) -> str:
        """All the text that was streamed so far: of a handler that yields its answer, what it had yielded."""
        return "".join(stream.text for stream in self.streams)

    @property
    def messages(self) -> tuple[Viewed, ...]:
        """The whole messages that the run had sent, without what it streamed."""
        return tuple(frame for frame in self.frames if frame.frame.get("from") == "bot" and "id" in frame.frame)

    def stream(self, stream_id: str) -> Streamed | None:
        """The stream of this id, if anything of it was stored."""
        return next((stream for stream in self.streams if stream.id == stream_id), None)


def resume_in(frame: Frame, earlier: Sequence[Frame] = ()) -> Resume | None:
    """The `resume` of a turn, or None. `earlier`: frames of it that came ahead of the turn, since it is a long one."""
    value = frame.get("resume")
    if not isinstance(value, dict):
        return None
    listed = value.get("frames")
    raw = [*earlier, *(listed if isinstance(listed, list) else ())]
    frames = tuple(viewed_in(each) for each in raw if isinstance(each, dict))
    interrupts = value.get("interrupts")
    return Resume(
        frames=frames,
        checkpoint=value.get("checkpoint"),
        asks=_asks(frames, interrupts if isinstance(interrupts, list) else []),
        answers=_answers(frames),
        streams=_streams(frames),
    )


def _asks(frames: Sequence[Viewed], ids: Sequence[Any]) -> tuple[Ask, ...]:
    asked = {str(each.frame.get("id")): ask_in(each.frame) for each in frames if each.type == "interrupt"}
    return tuple(asked.get(str(ask_id), Ask(str(ask_id))) for ask_id in ids)


def _answers(frames: Sequence[Viewed]) -> dict[str, Any]:
    """A question that was closed unanswered is not among them. What the agent made of one counts over its words."""
    found: dict[str, Any] = {}
    for each in frames:
        frame, data = each.frame, each.frame.get("data")
        given = frame.get("answers")
        if each.type == "resume" and isinstance(given, dict):
            found.update(given)
        elif isinstance(given, str) and isinstance(data, dict):
            found[given] = data.get("text", data)
        elif each.type == "interrupt_resolved" and isinstance(data, dict) and data.get("answer") is not None:
            found[str(frame.get("id"))] = data["answer"]
    return found


def _streams(frames: Sequence[Viewed]) -> tuple[Streamed, ...]:
    pieces: dict[str, list[str]] = {}
    done: set[str] = set()
    components = {
        str(each.frame.get("streamId"))
        for each in frames
        if each.type == "genui"
        and isinstance(each.frame.get("chunk"), dict)
        and each.frame["chunk"].get("type") == "ui"
    }
    for each in frames:
        if each.type != "genui":
            continue
        stream_id, chunk = str(each.frame.get("streamId")), each.frame.get("chunk")
        if stream_id in components:
            continue
        said = pieces.setdefault(stream_id, [])
        if isinstance(chunk, dict) and chunk.get("type") == "text":
            said.append(str(chunk.get("content", "")))
        if each.frame.get("done") is True:
            done.add(stream_id)
    return tuple(Streamed(stream_id, "".join(said), stream_id in done) for stream_id, said in pieces.items())
