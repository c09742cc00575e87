"""What a stored frame of an agent does: its key is taken, and its run knows what was said (rules 1, 6, 7, 8)."""

from __future__ import annotations

from streams.core import heard, keys
from streams.core.due import watch
from streams.core.events import Entry, Frame, FrameCommitted
from streams.core.frame_types import CHECKPOINT, CONTROL, INTERRUPT, STRUCTURED, UNNUMBERED
from streams.core.run_events import note_asks, run_of
from streams.core.state import Conversation, ImpossibleEvent, Partition, Progress, Run


def evolve_frame(state: Partition, conversation: Conversation, entry: Entry, event: FrameCommitted) -> None:
    """Its key, and what it did to its run."""
    if (event.frame.type in UNNUMBERED or event.frame.type in CONTROL) != (event.seq == 0):
        raise ImpossibleEvent(f"a frame of type {event.frame.type} cannot have seq {event.seq}")
    if event.n > 0:
        heard.note(state, event.member, event.n)
    if event.key is not None:
        keys.take(conversation, event.key, event.seq, event.frame.id, at=entry.at, timestamp=entry.timestamp)
    if event.run_id is None:
        return
    run = run_of(conversation, event.run_id, event.run_epoch)
    if (run.member or "") != event.member:
        raise ImpossibleEvent(f"run {run.id} is held by {run.member}, the frame is of {event.member}")
    progress = run.progress
    if progress is None:
        progress = run.progress = Progress(entry.at)
    progress.active_at = entry.at
    progress.inherited = False
    run.adopted_at = 0
    if event.seq:
        _count(conversation, run, progress, event, entry.at)
    elif event.frame.type == CHECKPOINT:
        progress.checkpoint = entry.lsn
    watch(state, conversation, run)


def continues(progress: Progress, stream_id: str | None) -> bool:
    """The next frame of this stream is the same coalesced event as the run's last."""
    return stream_id is not None and progress.last_stream == stream_id


def _count(conversation: Conversation, run: Run, progress: Progress, event: FrameCommitted, at: int) -> None:
    frame = event.frame
    progress.frames.append(event.seq)
    if not continues(progress, frame.stream_id):
        progress.events += 1
    progress.last_stream = frame.stream_id
    if frame.type == "genui":
        _count_chunk(progress, frame)
    elif frame.type == INTERRUPT:
        conversation.asking += frame.id not in progress.asks
        progress.asks[frame.id] = event.seq
        progress.answers.pop(frame.id, None)
        progress.asked_at = at
        note_asks(run, progress, at)
    elif frame.type == "interrupt_resolved":
        conversation.asking -= progress.asks.pop(frame.id, None) is not None
        progress.answers.pop(frame.id, None)
        note_asks(run, progress, at)
    elif frame.type not in STRUCTURED:
        progress.messages += 1


def _count_chunk(progress: Progress, frame: Frame) -> None:
    stream = frame.stream_id or ""
    if frame.done:
        progress.messages += 1
        if stream in progress.streams:
            progress.streams.remove(stream)
    elif stream not in progress.streams:
        progress.streams.append(stream)
