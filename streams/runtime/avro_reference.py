"""The codec by fastavro: slow, and right. What it returns or raises is what the compiled functions must equal."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, TypeVar

import msgspec
from fastavro import schemaless_reader, schemaless_writer

from schemas import NAMESPACE, Schema, envelope_of, plain_of
from streams.core.commands import Command
from streams.core.events import Entry, Unknown
from streams.runtime.framing import Framing
from streams.runtime.live import SIGNALS, LiveSignal
from streams.runtime.records import (
    EVENTS,
    INTAKE_OF,
    KEYED_CLASSES,
    MAX_BYTES,
    MEMBERSHIP_CLASSES,
    DeadLetter,
    KafkaRecord,
    Reason,
    Settled,
    Undecodable,
    Unencodable,
)
from streams.runtime.signals import Signal

Fields = dict[str, Any]
Made = TypeVar("Made", bound=Command | Signal)

_PREFIX: Final = len(NAMESPACE) + 1
_INT64: Final = range(-(2**63), 2**63)
# What fastavro raises for bytes that are not of the schema: an index outside a union, text that is no UTF-8, a length
# that is negative or absurd.
_MALFORMED: Final = (IndexError, ValueError, OverflowError, MemoryError)


class Reference:
    """Decodes with the writer's schema that the header names, whichever version it is; encodes with the current one."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing

    def keyed(self, name: str, record: KafkaRecord, at: int) -> Command:
        """The command in a record of `name`, `turns` or `frames`. Raises `Undecodable`."""
        envelope = self._record(name, record.value)
        conversation_id = envelope["conversation_id"]
        if record.key != conversation_id.encode():
            raise Undecodable(Reason.KEY_MISMATCH, f"the record's key is not its conversation_id {conversation_id!r}")
        branch, fields = envelope["command"]
        given = {"conversation_id": conversation_id, "ref": envelope["ref"], "at": at, "timestamp": record.timestamp}
        return _made(name, branch, {**fields, **given}, KEYED_CLASSES[name])

    def membership(self, record: KafkaRecord, at: int) -> Command | Signal:
        """The command or signal in a record of `membership`. Raises `Undecodable`."""
        branch, fields = self._record("membership", record.value)["command"]
        return _made("membership", branch, {**fields, "at": at, "timestamp": record.timestamp}, MEMBERSHIP_CLASSES)

    def entry(self, value: bytes | None) -> Entry:
        """The entry in a record of the journal, `Unknown` for an event of a later release. Raises `Undecodable`."""
        envelope = self._record("journal", value)
        name, fields = envelope["event"]
        name = name[_PREFIX:]
        fields["conversation_id"] = envelope["conversation_id"]
        fields["seq"] = envelope["seq"]
        try:
            event = msgspec.convert(fields, EVENTS[name])
        except (KeyError, msgspec.ValidationError):
            # A branch, or a word in place of one of ours, that a later release added: kept, so that readers go on.
            event = Unknown(conversation_id=fields["conversation_id"], seq=fields["seq"], name=name, raw=value or b"")
        return Entry(envelope["lsn"], envelope["at"], envelope["timestamp"], envelope["writer_epoch"], event)

    def dead_letter(self, value: bytes | None) -> DeadLetter:
        """The dead letter in a record of `dead-letters`. Raises `Undecodable`."""
        fields = plain_of(self._read("dead_letters", value))
        fields["headers"] = tuple((header["name"], header["value"]) for header in fields["headers"])
        settled = fields.get("settled")  # what an older release wrote has none
        fields["settled"] = None if settled is None else msgspec.convert(settled, Settled)
        return DeadLetter(**{name: fields[name] for name in DeadLetter.__struct_fields__ if name in fields})

    def live(self, value: bytes | None) -> LiveSignal:
        """The signal in a record of `live`. Raises `Undecodable`, for one of a later release too."""
        fields = self._record("live", value)
        branch, signal = fields.pop("signal")
        kind = SIGNALS.get(branch[_PREFIX:])
        if kind is None:
            raise Undecodable(Reason.UNKNOWN_SCHEMA, f"the signal {branch} belongs to a later release")
        return LiveSignal(**fields, signal=msgspec.convert(signal, kind))

    def encode_live(self, signal: LiveSignal) -> bytes:
        """The value of the record of `signal` in `live`. Raises `Unencodable`."""
        fields = {name: getattr(signal, name) for name in signal.__struct_fields__}
        fields["signal"] = (f"{NAMESPACE}.{type(signal.signal).__name__}", msgspec.to_builtins(signal.signal))
        return self._written("live", fields)

    def _record(self, name: str, value: bytes | None) -> Any:
        return envelope_of(self._read(name, value))

    def _read(self, name: str, value: bytes | None) -> Any:
        """What fastavro makes of it, with the names of unions' records."""
        if value is None:
            raise Undecodable(Reason.NULL_VALUE, "the record has no value")
        limit = MAX_BYTES.get(name, len(value))
        if len(value) > limit:
            raise Undecodable(Reason.TOO_LARGE, f"the record has {len(value)} bytes, the limit is {limit}")
        schema = self._writer(name, value)
        body = BytesIO(value)
        body.seek(self._framing.header_bytes)
        try:
            fields: Any = schemaless_reader(body, schema.parsed, return_record_name=True)
        except EOFError:
            raise Undecodable(Reason.TRUNCATED, f"the record ends before its {name} schema does") from None
        except _MALFORMED as error:
            raise Undecodable(Reason.WRONG_SCHEMA, f"the bytes do not fit their {name} schema: {error}") from None
        if body.tell() != len(value):
            raise Undecodable(Reason.TRAILING_BYTES, f"{len(value) - body.tell()} bytes follow the {name} record")
        return fields

    def _writer(self, name: str, value: bytes) -> Schema:
        schema = self._framing.writer(value)
        if schema is None:
            header = value[: self._framing.header_bytes].hex()
            raise Undecodable(Reason.UNKNOWN_SCHEMA, f"the record starts with {header!r}, which names no known schema")
        if schema.name != name:
            raise Undecodable(Reason.WRONG_SCHEMA, f"the record is one of {schema.name}, not of {name}")
        return schema

    def encode_command(self, command: Command | Signal) -> bytes:
        """The value of the intake record that carries `command` (see `INTAKE_OF` for its topic).

        `at` and `timestamp` are not written: the broker and the partition's clock give them. Raises `Unencodable`.
        """
        name = INTAKE_OF[type(command)]
        fields: Fields = msgspec.to_builtins(command)
        envelope: Fields = {"command": (f"{NAMESPACE}.{type(command).__name__}", fields)}
        if name != "membership":
            envelope["conversation_id"] = fields["conversation_id"]
            envelope["ref"] = fields["ref"]
        return self._written(name, envelope)

    def encode_entry(self, entry: Entry) -> bytes:
        """The value of the journal record of `entry`. Raises `Unencodable`."""
        event = entry.event
        if isinstance(event, Unknown):
            raise Unencodable(f"event: {event.name} belongs to a later release and is only ever read")
        return self._written(
            "journal",
            {
                "conversation_id": event.conversation_id,
                "seq": event.seq,
                "lsn": entry.lsn,
                "at": entry.at,
                "timestamp": entry.timestamp,
                "writer_epoch": entry.writer_epoch,
                "event": (f"{NAMESPACE}.{type(event).__name__}", msgspec.to_builtins(event)),
            },
        )

    def encode_dead_letter(self, letter: DeadLetter) -> bytes:
        """The value of the record of `letter` in `dead-letters`. Raises `Unencodable`."""
        fields = msgspec.structs.asdict(letter)
        fields["headers"] = [{"name": name, "value": value} for name, value in letter.headers]
        fields["settled"] = None if letter.settled is None else msgspec.structs.asdict(letter.settled)
        return self._written("dead_letters", fields)

    def _written(self, name: str, fields: Fields) -> bytes:
        body = BytesIO()
        body.write(self._framing.header(name))
        try:
            schemaless_writer(body, self._framing.schema(name).parsed, fields)
        except (ValueError, TypeError, OverflowError) as error:
            raise Unencodable(_culprit(name, fields) or f"{name}: {error}") from None
        return body.getvalue()


def _made(name: str, branch: str, fields: Fields, classes: Mapping[str, type[Made]]) -> Made:
    branch = branch[_PREFIX:]
    if branch not in classes:
        sentence = f"the command {branch} of {name} belongs to a later release"
        raise Undecodable(Reason.UNKNOWN_SCHEMA, sentence)
    try:
        return msgspec.convert(fields, classes[branch])
    except msgspec.ValidationError as error:
        raise Undecodable(Reason.WRONG_SCHEMA, f"the command {branch} of {name} breaks a rule: {error}") from None


def _culprit(path: str, value: object) -> str | None:
    """`<field>: <rule>` of the first value under `path` that Avro has no bytes for; None: it is something else."""
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                return f"{path}: text must not hold a lone surrogate (at character {error.start})"
        case int() if value not in _INT64:
            return f"{path}: an integer must fit into 64 bits"
        case (str(), dict() as fields):
            return _culprit(path, fields)
        case dict():
            found = (_culprit(f"{path}.{name}", item) for name, item in value.items())
            return next((problem for problem in found if problem), None)
        case list():
            found = (_culprit(f"{path}[{index}]", item) for index, item in enumerate(value))
            return next((problem for problem in found if problem), None)
        case _:
            pass
    return None
