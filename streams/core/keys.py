"""Idempotency keys: a repeat is told from something new before every other refusal (rule 1).

A key holds while it is among its conversation's newest 64, or younger than 24 h by log time. The rule looks at the
key and the command only, not at what happens to be in memory, so that an eviction or a restart gives the same
answers.

A conversation's keys are most of its state, and most of a worker's memory. So when it becomes idle they are packed into
few bytes each: a fingerprint, the first 8 of the key's digest (two of a conversation's keys share one once in 2^64
pairs; to make one for somebody else's coming key takes as many tries), and beside it, at the same place, 14 bytes of
facts:

    uint32 big-endian   upper two bits: whose id (`_DERIVED`, `_CONVERSATIONS`, `_ODD`); lower thirty: seq
    uint48 big-endian   at, ms
    int32 big-endian    timestamp - at, ms

What does not fit is kept whole in `odd_keys`, by the ordinal of the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from streams.core.events import Duplicate
from streams.core.ids import id_of_digest, key_digest
from streams.core.state import KEY_LIFETIME_MS, KEYS_IN_ROW, Conversation, KeyRecord

FORGET_EVERY: Final = 16
"""Keys that no longer count are looked for once in so many new ones; `find` does not depend on it."""

FINGERPRINT_BYTES: Final = 8
_FACTS: Final = Struct(">IHIi")
FACTS_BYTES: Final = _FACTS.size

_DERIVED: Final = 0
"""Its id follows from the key."""
_CONVERSATIONS: Final = 1 << 30
"""Its id is the conversation's: the key that opened it."""
_ODD: Final = 2 << 30
"""It is in `odd_keys`."""
_KIND: Final = 3 << 30
_SEQS: Final = 1 << 30
_TIMES: Final = 1 << 48
_LAGS: Final = 1 << 31


def find(conversation: Conversation, key: str, at: int) -> KeyRecord | None:
    """What was stored under `key`; None when nothing was, or when the key is too old to count."""
    record = kept(conversation, key)
    if record is None or record.ordinal > conversation.keys_issued - KEYS_IN_ROW or at - record.at < KEY_LIFETIME_MS:
        return record
    return None


def kept(conversation: Conversation, key: str) -> KeyRecord | None:
    """What is in memory of `key`, whether or not it still counts."""
    record = conversation.keys.get(key)
    if record is not None or not (conversation.fingerprints or conversation.older):
        return record
    digest = key_digest(conversation.id, key)
    record = _packed(conversation, digest[:FINGERPRINT_BYTES])
    if record is None or record.id:
        return record
    return KeyRecord(record.seq, id_of_digest(digest), record.at, record.timestamp, record.ordinal)


def _packed(conversation: Conversation, fingerprint: bytes) -> KeyRecord | None:
    fingerprints = conversation.fingerprints
    at = fingerprints.rfind(fingerprint)
    while at > 0 and at % FINGERPRINT_BYTES:
        at = fingerprints.rfind(fingerprint, 0, at + FINGERPRINT_BYTES - 1)
    if at < 0:
        return conversation.older.get(fingerprint)
    return _record(conversation, at // FINGERPRINT_BYTES)


def _record(conversation: Conversation, index: int) -> KeyRecord:
    """What the `index`th of `fingerprints` stands for."""
    ordinal = conversation.keys_packed - len(conversation.fingerprints) // FINGERPRINT_BYTES + index + 1
    word, high, low, lag = _FACTS.unpack_from(conversation.key_facts, index * FACTS_BYTES)
    kind = word & _KIND
    if kind == _ODD:
        return conversation.odd_keys[ordinal]
    at = high << 32 | low
    return KeyRecord(word - kind, "" if kind == _DERIVED else conversation.id, at, at + lag, ordinal)


def take(conversation: Conversation, key: str, seq: int, id_: str, *, at: int, timestamp: int) -> None:
    """Remember a key that was just stored, and forget those that no longer count."""
    keys = conversation.keys
    issued = conversation.keys_issued = conversation.keys_issued + 1
    if key in keys:
        del keys[key]  # one too old to count may still lie there; the new one takes its place in the order
    keys[key] = KeyRecord(seq, id_, at, timestamp, issued)
    if issued % FORGET_EVERY == 0 and issued > KEYS_IN_ROW:
        _forget_old(conversation, at)


def _forget_old(conversation: Conversation, at: int) -> None:
    keys, older = conversation.keys, conversation.older
    window = conversation.keys_issued - KEYS_IN_ROW
    while True:
        oldest = next(iter(keys))
        record = keys[oldest]
        if record.ordinal > window or at - record.at < KEY_LIFETIME_MS:
            break
        del keys[oldest]
    while older:
        fingerprint = next(iter(older))
        if at - older[fingerprint].at < KEY_LIFETIME_MS:
            return
        del older[fingerprint]


def pack(conversation: Conversation) -> None:
    """Pack what was taken by text. The fold calls it when the conversation becomes idle, and only then, so that what
    is packed depends on the journal alone."""
    issued = conversation.keys_issued
    window = issued - KEYS_IN_ROW
    packed = len(conversation.fingerprints) // FINGERPRINT_BYTES + len(conversation.keys)
    # Packed ones have no ordinals of their own: between them there is no room for one that is not packed.
    if packed > KEYS_IN_ROW + FORGET_EVERY or conversation.keys_packed < window:
        for fingerprint, record in beyond(conversation):
            _outlive(conversation, fingerprint, record)
        conversation.fingerprints, conversation.key_facts = newest(conversation)
    fingerprints, facts = [conversation.fingerprints], [conversation.key_facts]
    for key, record in conversation.keys.items():
        digest = key_digest(conversation.id, key)
        if record.ordinal <= window:
            _outlive(conversation, digest[:FINGERPRINT_BYTES], without_id(digest, record))
            continue
        fingerprints.append(digest[:FINGERPRINT_BYTES])
        at, lag = record.at, record.timestamp - record.at  # the common one at once, as `_facts` has it
        if record.id == id_of_digest(digest) and record.seq < _SEQS and 0 <= at < _TIMES and -_LAGS <= lag < _LAGS:
            facts.append(_FACTS.pack(_DERIVED | record.seq, at >> 32, at & 0xFFFFFFFF, lag))
        else:
            facts.append(_facts(conversation, digest, record))
    conversation.keys_packed = issued
    conversation.fingerprints, conversation.key_facts = b"".join(fingerprints), b"".join(facts)
    conversation.keys = {}


def without_id(digest: bytes, record: KeyRecord) -> KeyRecord:
    """The record, its id left out where it follows from the key."""
    if record.id != id_of_digest(digest):
        return record
    return KeyRecord(record.seq, "", record.at, record.timestamp, record.ordinal)


def _outlive(conversation: Conversation, fingerprint: bytes, record: KeyRecord) -> None:
    """Keep one that is not among the newest 64 any more."""
    conversation.older.pop(fingerprint, None)  # one too old to count may lie there: this takes its place in the order
    conversation.older[fingerprint] = record
    conversation.odd_keys.pop(record.ordinal, None)


def _facts(conversation: Conversation, digest: bytes, record: KeyRecord) -> bytes:
    seq, at, lag = record.seq, record.at, record.timestamp - record.at
    word = _word(conversation, digest, record)
    if word == _ODD or seq >= _SEQS or not (0 <= at < _TIMES and -_LAGS <= lag < _LAGS):
        conversation.odd_keys[record.ordinal] = record
        return _FACTS.pack(_ODD, 0, 0, 0)
    return _FACTS.pack(word | seq, at >> 32, at & 0xFFFFFFFF, lag)


def _word(conversation: Conversation, digest: bytes, record: KeyRecord) -> int:
    if record.id == id_of_digest(digest):
        return _DERIVED
    return _CONVERSATIONS if record.id == conversation.id else _ODD


def newest(conversation: Conversation) -> tuple[bytes, bytes]:
    """Fingerprints and facts of the packed ones that are among the newest 64 keys."""
    count = max(0, conversation.keys_packed - max(0, conversation.keys_issued - KEYS_IN_ROW))
    fingerprints, facts = conversation.fingerprints, conversation.key_facts
    return fingerprints[max(0, len(fingerprints) - count * FINGERPRINT_BYTES) :], facts[
        max(0, len(facts) - count * FACTS_BYTES) :
    ]


def beyond(conversation: Conversation) -> list[tuple[bytes, KeyRecord]]:
    """The packed ones that are not among the newest 64, in the order they were taken."""
    fingerprints = conversation.fingerprints
    surplus = (len(fingerprints) - len(newest(conversation)[0])) // FINGERPRINT_BYTES
    return [
        (fingerprints[index * FINGERPRINT_BYTES : (index + 1) * FINGERPRINT_BYTES], _record(conversation, index))
        for index in range(surplus)
    ]


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


def restore_older(conversation: Conversation, older: Iterable[tuple[bytes, int, str, int, int]]) -> None:
    """Put keys read from the table, each (fingerprint, seq, id, at, timestamp), before those in memory."""
    known = conversation.older
    restored = {
        fingerprint: KeyRecord(seq, id_, at, timestamp, 0)
        for fingerprint, seq, id_, at, timestamp in sorted(older, key=lambda row: (row[3], row[1], row[0]))
        if fingerprint not in known
    }
    conversation.older = restored | known
    conversation.older_keys = False
