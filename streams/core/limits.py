"""What is refused for its content: sizes, and text that a store behind the journal could not hold."""

from __future__ import annotations

from typing import Final

from streams.core.events import Frame, RefusedReason, Turn

TEXT_MAX_BYTES: Final = 64 * 1024
"""Of one text, as UTF-8."""

RECORD_MAX_BYTES: Final = 384 * 1024
"""Of one turn or frame, all its strings as UTF-8; with the envelope well below a broker's usual 1 MiB."""

CHECKPOINT_MAX_BYTES: Final = 256 * 1024
"""Of one checkpoint of a run, its JSON as UTF-8."""

RUN_EVENTS_MAX: Final = 1024
"""Coalesced events of one run: consecutive chunks of one stream count once."""

RUN_FRAMES_MAX: Final = 16 * RUN_EVENTS_MAX
"""Stored frames of one run, coalesced or not: 16,384. Bounds its state, and the list of seqs when superseded."""

SEALED_OVERHEAD_BYTES: Final = 22
"""Of a sealed text's token (`streams.sealing.token`), in front of its base64: prefix 5, key id 16, colon 1."""

ID_MAX_BYTES: Final = 512
"""Of an id or key, as UTF-8. An agent's key holds its conversation's id, its group twice and a clientId, and is indexed
by PostgreSQL together with the conversation's id: 5 * 512 bytes and what joins them stay below its 2,704."""


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def sealed_bytes(plain: int) -> int:
    """Length of the token of a text of `plain` bytes: nonce (12), text and tag (16) in base64, 4 characters for
    3 bytes. It tells the text's own length to within two bytes, so that limits hold for what is sealed too."""
    return SEALED_OVERHEAD_BYTES + 4 * ((plain + 12 + 16 + 2) // 3)


_SEALED_TEXT_MAX_BYTES: Final = sealed_bytes(TEXT_MAX_BYTES)
_SEALED_CHECKPOINT_MAX_BYTES: Final = sealed_bytes(CHECKPOINT_MAX_BYTES)


def _unstorable(text: str) -> bool:
    """NUL (PostgreSQL's text has no place for it) or a lone surrogate (UTF-8 has none)."""
    if "\0" in text:
        return True
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def problem_of_ids(fields: tuple[tuple[str, str | None], ...]) -> tuple[RefusedReason, str] | None:
    """The first (field, id) that is empty, too long or unstorable."""
    for field, value in fields:
        if value is None:
            continue
        if _unstorable(value):
            return RefusedReason.INVALID_TEXT, f"{field}: holds NUL or a lone surrogate"
        if not 1 <= _bytes(value) <= ID_MAX_BYTES:
            return RefusedReason.INVALID_TEXT, f"{field}: must have 1 to {ID_MAX_BYTES} bytes as UTF-8"
    return None


def problem_of_text(field: str, text: str | None) -> tuple[RefusedReason, str] | None:
    """Why this text, which is no message's, cannot be stored."""
    if text is None:
        return None
    if _unstorable(text):
        return RefusedReason.INVALID_TEXT, f"{field}: holds NUL or a lone surrogate"
    if (size := _bytes(text)) > RECORD_MAX_BYTES:
        return RefusedReason.RECORD_TOO_LARGE, f"{field}: {size} bytes as UTF-8; at most {RECORD_MAX_BYTES}"
    return None


def problem_of_turn(turn: Turn) -> tuple[RefusedReason, str] | None:
    """Why this turn cannot be stored, naming field and rule; None: it can."""
    if turn.id and turn.sender and turn.type and turn.key != "" and turn.client_id != "":
        everything = f"{turn.id}{turn.sender}{turn.channel}{turn.type}{turn.key}{turn.text}"
        if (
            turn.data is not None
            or turn.metadata is not None
            or turn.meta is not None
            or turn.client_id is not None
            or turn.reply_to is not None
            or turn.key_id is not None
        ):
            everything += f"{turn.data}{turn.metadata}{turn.meta}{turn.client_id}{turn.reply_to}{turn.key_id}"
        if _small_and_storable(everything):
            return None
    ids = (("id", turn.id), ("sender", turn.sender), ("channel", turn.channel), ("type", turn.type), ("key", turn.key))
    return problem_of_ids((*ids, ("client_id", turn.client_id))) or _problem_of_content(turn)


def problem_of_frame(frame: Frame, sender: str) -> tuple[RefusedReason, str] | None:
    """Why this frame of this sender cannot be stored, naming field and rule; None: it can."""
    if frame.id and frame.type and frame.client_id != "" and sender:
        everything = f"{frame.id}{frame.type}{frame.client_id}{frame.text}{sender}"
        if (
            frame.data is not None
            or frame.stream_id is not None
            or frame.key_id is not None
            or frame.metadata is not None
            or frame.extra is not None
        ):
            everything += f"{frame.data}{frame.stream_id}{frame.key_id}{frame.metadata}{frame.extra}"
        if _small_and_storable(everything):
            return None
    ids = (("id", frame.id), ("type", frame.type), ("client_id", frame.client_id), ("stream_id", frame.stream_id))
    return problem_of_ids(ids) or _problem_of_content(frame) or problem_of_ids((("sender", sender),))


def problem_of_checkpoint(frame: Frame) -> tuple[RefusedReason, str] | None:
    """Why this frame, which passed `problem_of_frame`, is no checkpoint that can be stored."""
    most = CHECKPOINT_MAX_BYTES if frame.key_id is None else _SEALED_CHECKPOINT_MAX_BYTES
    if (size := _bytes(frame.data or "")) > most:
        return RefusedReason.RECORD_TOO_LARGE, f"data: {size} bytes as UTF-8; at most {most}"
    return None


def _small_and_storable(everything: str) -> bool:
    """All strings of a record in one look, which most records pass: none of them can break a rule when this holds."""
    return (
        len(everything) <= ID_MAX_BYTES
        and "\0" not in everything
        and (everything.isascii() or (not _unstorable(everything) and _bytes(everything) <= ID_MAX_BYTES))
    )


def _problem_of_content(record: Turn | Frame) -> tuple[RefusedReason, str] | None:
    total = 0
    text_most = TEXT_MAX_BYTES if record.key_id is None else _SEALED_TEXT_MAX_BYTES
    for field in record.__struct_fields__:
        value = getattr(record, field)
        if not isinstance(value, str):
            continue
        if _unstorable(value):
            return RefusedReason.INVALID_TEXT, f"{field}: holds NUL or a lone surrogate"
        size = _bytes(value)
        if field == "text" and size > text_most:
            return RefusedReason.TEXT_TOO_LARGE, f"text: {size} bytes as UTF-8; at most {text_most}"
        total += size
    if total > RECORD_MAX_BYTES:
        return RefusedReason.RECORD_TOO_LARGE, f"record: {total} bytes as UTF-8; at most {RECORD_MAX_BYTES}"
    return None
