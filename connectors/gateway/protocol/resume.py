"""What a member that continues a run is told of it: the turn frame's `resume`, and the parts that come ahead of a long
one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from connectors.gateway.protocol.render import Fields, encode, numbered, raw, resume_frame
from streams.core.events import Entry, Event, FrameCommitted, TurnCommitted

# Frames of a run may sum up to many times what a client takes as one message (1 MiB).
PART_BYTES = 256 * 1024


class Resume(msgspec.Struct, frozen=True):
    """`frames`: what was stored, as viewers got it, encoded. `checkpoint`: JSON. `interrupts`: questions still open."""

    frames: Sequence[bytes]
    checkpoint: str | None
    interrupts: tuple[str, ...]

    def split(self) -> tuple[list[Sequence[bytes]], Resume]:
        """The parts that go ahead, and the resume of what is left for the turn itself."""
        *parts, last = _parts(self.frames)
        return parts, Resume(last, self.checkpoint, self.interrupts)

    def fields(self) -> Fields:
        """As the wire has it."""
        shown: Fields = {"frames": [msgspec.Raw(frame) for frame in self.frames], "interrupts": self.interrupts}
        if self.checkpoint is not None:
            shown["checkpoint"] = raw(self.checkpoint)
        return shown


class Gathering:
    """Makes a resume from what is stored of a run, ascending, without what was superseded."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._asks: dict[str, None] = {}

    def add(self, entries: Sequence[Entry]) -> None:
        """The next entries."""
        for entry in entries:
            frame = numbered(entry)
            if frame is not None:
                self._follow(entry.event, frame)
                self._frames.append(encode(frame))

    def _follow(self, event: Event, frame: Fields) -> None:
        if isinstance(event, TurnCommitted) and event.interrupt_id is not None:
            frame["answers"] = event.interrupt_id
            self._asks.pop(event.interrupt_id, None)
        elif isinstance(event, FrameCommitted) and event.frame.type == "interrupt":
            self._asks[event.frame.id] = None
        elif isinstance(event, FrameCommitted) and event.frame.type == "interrupt_resolved":
            self._asks.pop(event.frame.id, None)

    def answered(self, answers: str) -> None:
        """What people answered, a JSON object: the member that was given it is gone."""
        frame = resume_frame(answers)
        self._frames.append(encode(frame))
        for ask in msgspec.json.decode(answers):
            self._asks.pop(ask, None)

    def resume(self, checkpoint: str | None) -> Resume:
        """What came together, with the run's last checkpoint."""
        return Resume(self._frames, checkpoint, tuple(self._asks))


def _parts(frames: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """At least one, of at most `PART_BYTES` each; a frame alone may be no longer than a record."""
    part: list[bytes] = []
    size = 0
    for frame in frames:
        if part and size + len(frame) > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(frame)
        size += len(frame)
    yield part
