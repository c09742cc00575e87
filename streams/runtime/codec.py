"""Records to commands and entries, and back: the only place that knows how Turnlog's bytes look.

A record names its writer's schema in a header (see `framing`), and is decoded with exactly that schema; what an older
writer left out gets its default, what a newer one added is dropped. The branch of a union is written and read by name.

The everyday shape, in the schema of this release, takes the compiled way (`avro_compiler`); all else, and everything
that is wrong, takes fastavro's (`avro_reference`), which says what is wrong with it.

What cannot be decoded raises `Undecodable`, what cannot be encoded `Unencodable`; both say why. Nothing here does IO,
but that a schema registry is asked, once, for a schema that was not met before.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import schemas
from streams.core.commands import Command
from streams.core.events import Entry
from streams.runtime.avro_compiler import Reader, compile_reader, compile_writers
from streams.runtime.avro_reference import Reference
from streams.runtime.avro_varints import Unusual, encode_long, read_length
from streams.runtime.framing import SINGLE_OBJECT, Framing
from streams.runtime.live import LiveSignal
from streams.runtime.records import (
    EVENTS,
    INTAKE_OF,
    KEYED_CLASSES,
    MAX_BYTES,
    DeadLetter,
    KafkaRecord,
    Reason,
    Undecodable,
    Unencodable,
)
from streams.runtime.signals import Signal

__all__ = ["INTAKE_OF", "Codec", "DeadLetter", "KafkaRecord", "Reason", "Undecodable", "Unencodable"]

_KEYED = ("conversation_id", "ref")
_STAMPS = ("at", "timestamp")
_read_turns = compile_reader(
    schemas.current("turns").definition, KEYED_CLASSES["turns"], given=_STAMPS, inherited=_KEYED
)
_read_frames = compile_reader(
    schemas.current("frames").definition, KEYED_CLASSES["frames"], given=_STAMPS, inherited=_KEYED
)
_read_journal = compile_reader(
    schemas.current("journal").definition, EVENTS, given=(), inherited=("conversation_id", "seq")
)
_write_command = {
    **compile_writers(schemas.current("turns").definition, KEYED_CLASSES["turns"], given=()),
    **compile_writers(schemas.current("frames").definition, KEYED_CLASSES["frames"], given=()),
}
_write_event = compile_writers(
    schemas.current("journal").definition, EVENTS, given=("lsn", "at", "timestamp", "writer_epoch")
)
# Times and the writer epoch are the same all along a batch, or nearly.
_repeated_long = lru_cache(maxsize=4096)(encode_long)

_PRESENT: Final = 2
"""What an optional field begins with where it holds something: branch 1 of its union, zigzagged."""
_UNUSUAL_TO_READ: Final = (Unusual, IndexError, KeyError, UnicodeDecodeError)
_UNUSUAL_TO_WRITE: Final = (Unusual, KeyError, IndexError, AttributeError, TypeError, UnicodeEncodeError)


class Codec:
    """Encodes and decodes every record in one framing. It has no state of its own: any task may use it."""

    def __init__(self, framing: Framing = SINGLE_OBJECT) -> None:
        self.framing = framing
        self._reference = Reference(framing)
        self._start = framing.header_bytes
        self._heads = {name: framing.header(name) for name in schemas.NAMES}
        self._texts = {name: head.decode("latin-1") for name, head in self._heads.items()}

    def decode_turns(self, record: KafkaRecord, at: int) -> Command:
        """The command in a record of `turns`, decided at log time `at` (ms). Raises `Undecodable`."""
        return self._keyed("turns", _read_turns, record, at)

    def decode_frames(self, record: KafkaRecord, at: int) -> Command:
        """The command in a record of `frames`, decided at log time `at` (ms). Raises `Undecodable`."""
        return self._keyed("frames", _read_frames, record, at)

    def _keyed(self, name: str, read: Reader, record: KafkaRecord, at: int) -> Command:
        value = record.value
        if value is not None and value.startswith(self._heads[name]) and len(value) <= MAX_BYTES[name]:
            command: Command
            try:
                key, _, command, end = read(value, value.decode("latin-1"), self._start, at, record.timestamp)
                if end == len(value) and key.encode() == record.key:
                    return command
            except _UNUSUAL_TO_READ:
                pass  # the reference reads it, or says what is wrong with it
        return self._reference.keyed(name, record, at)

    def refs_of(self, name: str, records: Iterable[KafkaRecord]) -> list[str | None]:
        """The refs of records of `turns` or `frames`, without a look at the rest of them.

        None: one has none of up to 63 bytes, its key is not its conversation, or it is not of this release's schema.
        """
        head = self._heads[name]
        return [self._ref_of(head, record.key, record.value) for record in records]

    def _ref_of(self, head: bytes, key: bytes | None, value: bytes | None) -> str | None:
        if value is None or key is None or not value.startswith(head):
            return None
        try:
            size, start = read_length(value, self._start + 1, value[self._start])
            end = start + (size >> 1)
            size = value[end + 1]
            if value[start:end] != key or value[end] != _PRESENT or size & 0x81:
                return None
            return value[end + 2 : end + 2 + (size >> 1)].decode()
        except _UNUSUAL_TO_READ:
            return None

    def decode_membership(self, record: KafkaRecord, at: int) -> Command | Signal:
        """The command or signal in a record of `membership`, decided at log time `at` (ms). Raises `Undecodable`."""
        return self._reference.membership(record, at)

    def decode_entry(self, value: bytes | None) -> Entry:
        """The entry in a record of the journal; an event of a later release becomes `Unknown`. Raises `Undecodable`."""
        if value is not None and value.startswith(self._heads["journal"]):
            try:
                _, _, lsn, at, timestamp, epoch, event, end = _read_journal(value, value.decode("latin-1"), self._start)
                if end == len(value):
                    return Entry(lsn, at, timestamp, epoch, event)
            except _UNUSUAL_TO_READ:
                pass  # the reference reads it, or says what is wrong with it
        return self._reference.entry(value)

    def decode_dead_letter(self, value: bytes | None) -> DeadLetter:
        """The dead letter in a record of `dead-letters`. Raises `Undecodable`."""
        return self._reference.dead_letter(value)

    def decode_live(self, value: bytes | None) -> LiveSignal:
        """The signal in a record of `live`. Raises `Undecodable`."""
        return self._reference.live(value)

    def encode_live(self, signal: LiveSignal) -> bytes:
        """The value of the record of `signal` in `live`. Raises `Unencodable`."""
        return self._reference.encode_live(signal)

    def encode_command(self, command: Command | Signal) -> bytes:
        """The value of the intake record that carries `command` (see `INTAKE_OF` for its topic).

        `at` and `timestamp` are not written: the broker and the partition's clock give them. Raises `Unencodable`.
        """
        kind = type(command)
        try:
            return _write_command[kind](self._texts[INTAKE_OF[kind]], command).encode("latin-1")
        except _UNUSUAL_TO_WRITE:
            return self._reference.encode_command(command)

    def encode_entry(self, entry: Entry) -> bytes:
        """The value of the journal record of `entry`. Raises `Unencodable`."""
        event = entry.event
        try:
            return _write_event[type(event)](
                self._texts["journal"],
                event,
                encode_long(entry.lsn),
                _repeated_long(entry.at),
                _repeated_long(entry.timestamp),
                _repeated_long(entry.writer_epoch),
            ).encode("latin-1")
        except _UNUSUAL_TO_WRITE:
            return self._reference.encode_entry(entry)

    def encode_dead_letter(self, letter: DeadLetter) -> bytes:
        """The value of the record of `letter` in `dead-letters`. Raises `Unencodable`."""
        return self._reference.encode_dead_letter(letter)
