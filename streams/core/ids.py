"""Ids and idempotency keys derived from what a command brings: same input, same id, on any machine."""

from __future__ import annotations

from hashlib import sha1
from typing import Final
from uuid import UUID

from streams.core.events import Turn

TURNLOG_NAMESPACE_UUID: Final = UUID("6f0d6bd1-5a0c-5d0e-9d57-7d1f5b1c2a41")
"""Fixed for ever: message ids of keyed turns and frames are uuid5 under it."""

_NAMESPACE_BYTES: Final = TURNLOG_NAMESPACE_UUID.bytes
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""A hex digit -> the one with a UUID's variant bits, 10, in place of its upper two."""

SEPARATOR: Final = "\x1f"
"""ASCII unit separator: stands in no id, so that joined parts cannot be confused."""


def message_id(conversation_id: str, key: str) -> str:
    """Message id of whatever was sent under `key` (see `turn_key`, `frame_key`) in this conversation."""
    return id_of_digest(key_digest(conversation_id, key))


def key_digest(conversation_id: str, key: str) -> bytes:
    """What stands for the key in its conversation: the SHA-1 (20 bytes) that uuid5 makes `message_id` of (RFC 9562)."""
    return sha1(_NAMESPACE_BYTES + f"{conversation_id}{SEPARATOR}{key}".encode()).digest()  # noqa: S324 -- as uuid5 has it


def id_of_digest(digest: bytes) -> str:
    """The uuid5 that a digest is the hash of."""
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


def turn_key(sender: str, key: str) -> str:
    """Idempotency key of a person's turn: unique per (conversation, sender)."""
    return f"user:{sender}:{key}"


def key_of_turn(turn: Turn) -> str | None:
    """`turn_key` of a turn, `invocation_key` of an invocation; None: it has no idempotency key."""
    if turn.invocation is not None:
        return invocation_key(turn.invocation.id)
    return None if turn.key is None else f"user:{turn.sender}:{turn.key}"


def invocation_key(invocation: str) -> str:
    """Idempotency key of an invocation: unique per conversation, whoever calls."""
    return f"invocation:{invocation}"


def invocation_message_id(conversation_id: str, invocation: str, input_hash: str) -> str:
    """Message id of an invocation's turn: another input gives another one, so that a conflict shows."""
    return message_id(conversation_id, f"invocation:{invocation}{SEPARATOR}{input_hash}")


def frame_key(group: str, run_id: str | None, client_id: str, generation: int = 0) -> str:
    """Idempotency key of an agent's frame: unique per (conversation, group, run, clientId).

    `generation` counts how often the run's frames were superseded. It is part of the key from the first time on, so
    that superseded frames free their keys, and the new owner's frames get message ids of their own.
    """
    scope = "-" if run_id is None else run_id if generation == 0 else f"{run_id}#{generation}"
    return f"bot:{group}:{scope}:{client_id}"


def open_key(key: str) -> str:
    """Key under which a conversation remembers the command that opened it."""
    return f"open:{key}"


def person_key(sender: str, client_id: str) -> str:
    """Idempotency key of what a person sends beside their turns: unique per (conversation, sender)."""
    return f"person:{sender}:{client_id}"


def run_id(conversation_id: str, turn_seq: int, group: str, edition: int = 0) -> str:
    """`<conversation id>/<turn seq>/<group>`: one run per turn and group; `<turn seq>~<edition>` for those of a turn
    whose answer is wanted anew."""
    turn = turn_seq if edition == 0 else f"{turn_seq}~{edition}"
    return f"{conversation_id}/{turn}/{group}"


def edition_of(conversation_id: str, run_id: str) -> int:
    """Which edition of its turn's answer a run is; 0: the first one, of the turn as it was said."""
    turn = run_id.removeprefix(f"{conversation_id}/").partition("/")[0]
    number = turn.partition("~")[2]
    return int(number) if number.isdecimal() else 0


def edition_id(conversation_id: str, turn_id: str, edition: int) -> str:
    """Message id under which a turn is given to agents when its answer is wanted for the `edition`th time anew."""
    return message_id(conversation_id, f"edition:{turn_id}:{edition}")


def channel_of_group(group: str) -> str:
    """`<channel>` of `<channel>`, `<channel>/<group>` and `<channel>/~<member>`; channel ids hold no slash."""
    return group.partition("/")[0]


def is_of_one(group: str) -> bool:
    """Whether the group is one connection by itself, `<channel>/~<member>`; no named group begins so."""
    return "/~" in group
