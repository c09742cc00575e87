"""What a person got to see of an agent's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnlog.wire import Frame


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that waits for `person.answer(…)`, or for the next `person.say(…)`."""

    id: str
    payload: Any
    actions: tuple[Frame, ...] = ()
    data: Frame = field(default_factory=dict, repr=False)

    @property
    def question(self) -> str:
        """Its text."""
        title = self.payload.get("title") if isinstance(self.payload, dict) else self.payload
        return title if isinstance(title, str) else ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came since the person last said something, without what was superseded."""

    status: str
    """`finished`, `error`, `aborted`, `timed out`, `owner gone` (an invocation's process died), or `asking`: it goes on
    when the question is answered."""
    frames: tuple[Frame, ...] = ()
    """All that was stored, as viewers get it, in order."""
    asks: tuple[Asked, ...] = ()
    """Questions that are open."""
    error: Frame | None = None
    """What the person's client was told, when the handler failed."""

    @property
    def text(self) -> str:
        """All the text: streams and messages, joined by blank lines."""
        return "\n\n".join(text for text in self.texts if text)

    @property
    def texts(self) -> list[str]:
        """The text of each message and of each stream, in the order in which they began."""
        return texts_of(self.frames)

    @property
    def messages(self) -> list[Frame]:
        """Whole messages, without streams, tools and questions."""
        return [frame for frame in self.frames if "from" in frame and frame["type"] != "event"]

    @property
    def tools(self) -> list[Frame]:
        """Each use of a tool, as it stands: `id`, `name`, `status`, `params`, `result`, `error`."""
        return list({f["data"]["id"]: f["data"] for f in self.frames if f["type"] == "tool_call"}.values())

    @property
    def value(self) -> Any:
        """Of an invocation: the JSON value that the handler returned, else the text."""
        results = [frame["data"]["value"] for frame in self.frames if frame["type"] == "result"]
        return results[-1] if results else self.text

    @property
    def question(self) -> str:
        """The text of the oldest open question. Raises `AssertionError` when there is none."""
        if not self.asks:
            raise AssertionError(f"the agent asked nothing; it said {self.text!r} and {self.status}")
        return self.asks[0].question


def texts_of(frames: Sequence[Frame]) -> list[str]:
    """The texts of messages and streams."""
    found: dict[str, str] = {}
    for frame in frames:
        if frame["type"] == "genui":
            chunk = frame["chunk"]
            if chunk.get("type") == "text":
                stream = f"stream {frame['streamId']}"
                found[stream] = found.get(stream, "") + str(chunk["content"])
        elif "from" in frame and isinstance(frame.get("data"), dict):
            found[f"message {frame['id']}"] = str(frame["data"].get("text", ""))
    return list(found.values())
