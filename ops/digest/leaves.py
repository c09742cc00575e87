"""The hash of one record: over all that Kafka has of it, so that it holds for every faithful copy.

leaf = SHA-256(0x00 || msgpack([offset, timestamp, key, value, [[name, value], …]])), integers and lengths in their
shortest form (https://github.com/msgpack/msgpack/blob/master/spec.md): keys and values are `bin` or nil, names `str`.
The zero byte keeps a leaf apart from whatever else is hashed, as RFC 6962 does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from ops.history.port import Recorded

LEAF_BYTES: Final = 32
MARK: Final = b"\0"
_encode = msgspec.msgpack.Encoder().encode


def leaf_of(recorded: Recorded) -> bytes:
    """The leaf hash of one record."""
    return hashlib.sha256(MARK + _encode(recorded)).digest()


def leaves_of(chunk: Sequence[Recorded]) -> list[bytes]:
    """The leaf hashes of a chunk, in order: about 1.2 µs a record."""
    sha256, encode, mark = hashlib.sha256, _encode, MARK
    return [sha256(mark + encode(recorded)).digest() for recorded in chunk]
