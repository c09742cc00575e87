"""A record of the journal that is no entry is named, and ends a command with the way out."""

from __future__ import annotations

import pytest

from ops.cli.common import translated_failures
from ops.cli.errors import CommandFailed
from ops.history.decoding import decode_chunk
from ops.history.port import Recorded
from streams.core.events import BatchCommitted, Entry, WriterOpened
from streams.runtime.codec import Codec
from streams.runtime.records import Undecodable

CODEC = Codec()


def entry(lsn: int) -> Entry:
    event = WriterOpened(writer_epoch=1, worker="w") if lsn == 1 else BatchCommitted(turns=0, frames=0, membership=lsn)
    return Entry(lsn, 0, 0, 1, event)


def recorded(offset: int, value: bytes | None) -> Recorded:
    return Recorded(offset, 0, None, value, ())


def test_entries_come_in_order() -> None:
    entries = [entry(1), entry(2)]
    assert decode_chunk(CODEC, [recorded(e.lsn, CODEC.encode_entry(e)) for e in entries]) == entries


@pytest.mark.parametrize("value", [None, b"", b"not one of ours", CODEC.encode_entry(entry(2)) + b"!"])
def test_the_first_record_that_is_none_is_named_with_the_way_out(value: bytes | None) -> None:
    chunk = [recorded(6, CODEC.encode_entry(entry(1))), recorded(7, value), recorded(8, None)]
    with pytest.raises(Undecodable, match="at offset 7:"):
        decode_chunk(CODEC, chunk)
    with pytest.raises(CommandFailed, match=r"offset 7(.|\n)*`turnlog audit verify`"), translated_failures():
        decode_chunk(CODEC, chunk)
