"""Avro's numbers, to latin-1 text and from bytes: what compiled readers and writers call (see `avro_compiler`)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_LOW_BITS: Final = 14  # two varint bytes: what a table can hold (2^14 entries)
_LOW: Final = (1 << _LOW_BITS) - 1
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)


class Unusual(Exception):
    """Not the everyday shape; fastavro decides what to make of it."""


def _varint(unsigned: int) -> str:
    """The variable-length bytes of `unsigned`, seven bits a byte, lowest first, as latin-1 text."""
    out = []
    while unsigned > 0x7F:
        out.append(chr(unsigned & 0x7F | 0x80))
        unsigned >>= 7
    out.append(chr(unsigned))
    return "".join(out)


SMALL: Final = tuple(_varint(n) for n in range(_LOW + 1))
_CONTINUED: Final = tuple(chr(n & 0x7F | 0x80) + chr(n >> 7 | 0x80) for n in range(_LOW + 1))
# The bits above the lowest 14 change rarely along a partition: an lsn's every 8,192 records, a time's every 8 s.
_high = lru_cache(maxsize=4096)(_varint)


def encode_long(value: int) -> str:
    """The bytes of an Avro long as latin-1 text. Raises `Unusual` when it does not fit into 64 bits."""
    zigzag = value << 1 if value >= 0 else ~(value << 1)
    if zigzag <= _LOW:
        return SMALL[zigzag]
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise Unusual
    return _CONTINUED[zigzag & _LOW] + _high(zigzag >> _LOW_BITS)


def read_varint(value: bytes, i: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose `first` byte had its continuation bit set, and the offset after it."""
    n = first & 0x7F
    shift = 7
    while (byte := value[i]) > 0x7F:
        if shift > 56:  # nine bytes carry 63 bits, a tenth the last one
            raise Unusual
        n |= (byte & 0x7F) << shift
        shift += 7
        i += 1
    n |= byte << shift
    if n >> 64:
        raise Unusual
    return n, i + 1


def read_length(value: bytes, i: int, first: int) -> tuple[int, int]:
    """The length that begins with the byte `first`, which lies before offset `i`, and the offset after it: a varint as
    `read_varint` reads it, or of one byte; zigzagged, never negative. Raises `Unusual`."""
    if first & 1:
        raise Unusual
    if first < 0x80:
        return first, i
    second = value[i]
    if second < 0x80:
        return first & 0x7F | second << 7, i + 1
    return read_varint(value, i, first)
