"""Idempotency keys: a repeat is told from something new before every other refusal (rule 1).

A key holds while it is among its conversation's newest 64, or younger than 24 h by log time. The rule looks at the
key and the command only, not at what happens to be in memory, so that an eviction or a restart gives the same
answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streams.core.events import Duplicate
from streams.core.state import KEY_LIFETIME_MS, KEYS_IN_ROW, Conversation, KeyRecord

_FORGET_EVERY: Final = 16
"""Keys that no longer count are looked for once in so many new ones; `find` does not depend on it."""


def find(conversation: Conversation, key: str, at: int) -> KeyRecord | None:
    """What was stored under `key`; None when nothing was, or when the key is too old to count."""
    record = conversation.keys.get(key)
    if record is None or record.ordinal > conversation.keys_issued - KEYS_IN_ROW or at - record.at < KEY_LIFETIME_MS:
        return record
    return None


def take(conversation: Conversation, key: str, seq: int, id_: str, *, at: int, timestamp: int) -> None:
    """Remember a key that was just stored, and forget those that no longer count."""
    keys = conversation.keys
    issued = conversation.keys_issued = conversation.keys_issued + 1
    keys.pop(key, None)  # one too old to count may still lie there; the new one takes its place in the order
    keys[key] = KeyRecord(seq, id_, at, timestamp, issued)
    if issued % _FORGET_EVERY == 0 and issued > KEYS_IN_ROW:
        _forget_old(conversation, at)


def _forget_old(conversation: Conversation, at: int) -> None:
    keys = conversation.keys
    window = conversation.keys_issued - KEYS_IN_ROW
    while True:
        oldest = next(iter(keys))
        record = keys[oldest]
        if record.ordinal > window or at - record.at < KEY_LIFETIME_MS:
            return
        del keys[oldest]


def repeat(
    conversation: Conversation, record: KeyRecord, key: str, ref: str | None, client_id: str | None = None
) -> Duplicate:
    """The answer to a repeat: the first one's ack."""
    return Duplicate(
        conversation_id=conversation.id,
        ref=ref,
        of_seq=record.seq,
        id=record.id,
        of_timestamp=record.timestamp,
        key=key,
        client_id=client_id,
    )


def restore_older(conversation: Conversation, older: Iterable[tuple[str, int, str, int, int]]) -> None:
    """Put keys read from the table, each (key, seq, id, at, timestamp), before those in memory."""
    known = conversation.keys
    restored = {
        key: KeyRecord(seq, id_, at, timestamp, 0)
        for key, seq, id_, at, timestamp in sorted(older, key=lambda row: (row[3], row[1], row[0]))
        if key not in known
    }
    conversation.keys = restored | known
    conversation.older_keys = False
