"""Records to commands and entries, and back: the only place that knows how Turnlog's bytes look.

A record names its writer's schema in a header (see `framing`), and is decoded with exactly that schema; what an older
writer left out gets its default, what a newer one added is dropped. The branch of a union is written and read by name.

Nothing here does IO. What cannot be decoded raises `Undecodable`, what cannot be encoded `Unencodable`; both say why.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from io import BytesIO
from typing import Any, Final, Protocol

import msgspec
from fastavro import schemaless_reader, schemaless_writer

from schemas import NAMESPACE, Schema
from streams.core.commands import (
    ApplyConfig,
    ApplyList,
    CloseConversation,
    Command,
    CommitFrame,
    CommitTurn,
    Join,
    Leave,
    OpenConversation,
    ReopenConversation,
)
from streams.core.events import Entry, Event, Unknown
from streams.runtime.framing import SINGLE_OBJECT, Framing
from streams.runtime.signals import Goodbye, Heartbeat, Signal, Tick

Fields = dict[str, Any]

# The design's limit of a record (rule 9), and the broker's default `message.max.bytes` without its batch overhead for
# membership, whose lists and documents are the operators' own.
MAX_KEYED_BYTES: Final = 384 * 1024
MAX_MEMBERSHIP_BYTES: Final = 1024 * 1024

TURN_COMMANDS: Final = (OpenConversation, CommitTurn, CloseConversation, ReopenConversation)
FRAME_COMMANDS: Final = (CommitFrame,)
MEMBERSHIP_COMMANDS: Final = (Join, Leave, ApplyList, ApplyConfig, Heartbeat, Goodbye, Tick)
EVENTS: Final[Mapping[str, type[Event]]] = {c.__name__: c for c in Event.__subclasses__() if c is not Unknown}

INTAKE_OF: Final[Mapping[type, str]] = {
    **dict.fromkeys(TURN_COMMANDS, "turns"),
    **dict.fromkeys(FRAME_COMMANDS, "frames"),
    **dict.fromkeys(MEMBERSHIP_COMMANDS, "membership"),
}
"""Class of a command or signal to the intake topic (a schema's name) that carries it."""

_INTAKE_CLASSES: Final[Mapping[str, Mapping[str, type[Command | Signal]]]] = {
    "turns": {c.__name__: c for c in TURN_COMMANDS},
    "frames": {c.__name__: c for c in FRAME_COMMANDS},
    "membership": {c.__name__: c for c in MEMBERSHIP_COMMANDS},
}
_PREFIX: Final = len(NAMESPACE) + 1
_INT64: Final = range(-(2**63), 2**63)


class Reason(StrEnum):
    """Why a record cannot be taken: the dead letter's `error`, and the reason of its `Rejected`."""

    NULL_VALUE = "null_value"
    TOO_LARGE = "too_large"
    UNKNOWN_SCHEMA = "unknown_schema"
    WRONG_SCHEMA = "wrong_schema"
    TRUNCATED = "truncated"
    TRAILING_BYTES = "trailing_bytes"
    KEY_MISMATCH = "key_mismatch"
    WRONG_PARTITION = "wrong_partition"


class Undecodable(Exception):  # noqa: N818  it says what the record is
    """A record that cannot be taken. `reason` in a word for machines, `str()` a sentence for people."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Unencodable(ValueError):  # noqa: N818  it says what the value is
    """A value that its schema has no bytes for; the message names the field and the rule."""


class KafkaRecord(Protocol):
    """What the codec reads of a consumed record: aiokafka's `ConsumerRecord` is one."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An intake record that could not be taken, as it was; see `schemas/avro/dead_letters.avsc`."""

    error: str
    reason: str
    origin: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    at: int


class Codec:
    """Encodes and decodes every record in one framing. It has no state of its own: any task may use it."""

    def __init__(self, framing: Framing = SINGLE_OBJECT) -> None:
        self.framing = framing

    # ------------------------------------------------------------------------------------------------- decode
    def decode_turns(self, record: KafkaRecord, at: int) -> Command:
        """The command in a record of `turns`, decided at log time `at` (ms). Raises `Undecodable`."""
        return self._keyed("turns", record, at)

    def decode_frames(self, record: KafkaRecord, at: int) -> Command:
        """The command in a record of `frames`, decided at log time `at` (ms). Raises `Undecodable`."""
        return self._keyed("frames", record, at)

    def decode_membership(self, record: KafkaRecord, at: int) -> Command | Signal:
        """The command or signal in a record of `membership`, decided at log time `at` (ms). Raises `Undecodable`."""
        name, fields = self._record("membership", record.value, MAX_MEMBERSHIP_BYTES)["command"]
        given = {**fields, "at": at, "timestamp": record.timestamp}
        return self._made("membership", name, given)

    def decode_entry(self, value: bytes | None) -> Entry:
        """The entry in a record of the journal; an event of a later release becomes `Unknown`. Raises `Undecodable`."""
        envelope = self._record("journal", value, None)
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

    def decode_dead_letter(self, value: bytes | None) -> DeadLetter:
        """The dead letter in a record of `dead-letters`. Raises `Undecodable`."""
        fields = self._record("dead_letters", value, None)
        fields["headers"] = tuple((header["name"], header["value"]) for header in fields["headers"])
        return DeadLetter(**fields)

    def _keyed(self, name: str, record: KafkaRecord, at: int) -> Command:
        envelope = self._record(name, record.value, MAX_KEYED_BYTES)
        conversation_id = envelope["conversation_id"]
        if record.key is None or record.key != conversation_id.encode():
            raise Undecodable(Reason.KEY_MISMATCH, f"the record's key is not its conversation_id {conversation_id!r}")
        branch, fields = envelope["command"]
        given = {
            **fields,
            "conversation_id": conversation_id,
            "ref": envelope["ref"],
            "at": at,
            "timestamp": record.timestamp,
        }
        command = self._made(name, branch, given)
        assert isinstance(command, Command)
        return command

    def _made(self, name: str, branch: str, fields: Fields) -> Command | Signal:
        branch = branch[_PREFIX:]
        try:
            return msgspec.convert(fields, _INTAKE_CLASSES[name][branch])
        except KeyError:
            raise Undecodable(
                Reason.UNKNOWN_SCHEMA, f"the command {branch} of {name} belongs to a later release"
            ) from None
        except msgspec.ValidationError as error:
            raise Undecodable(Reason.WRONG_SCHEMA, f"the command {branch} of {name} breaks a rule: {error}") from None

    def _record(self, name: str, value: bytes | None, limit: int | None) -> Fields:
        if value is None:
            raise Undecodable(Reason.NULL_VALUE, "the record has no value")
        if limit is not None and len(value) > limit:
            raise Undecodable(Reason.TOO_LARGE, f"the record has {len(value)} bytes, the limit is {limit}")
        schema = self._writer(name, value)
        body = BytesIO(value)
        body.seek(self.framing.header_bytes)
        try:
            fields: Fields = schemaless_reader(body, schema.parsed, return_record_name=True)
        except EOFError:
            raise Undecodable(Reason.TRUNCATED, f"the record ends before its {name} schema does") from None
        except (IndexError, ValueError, OverflowError, MemoryError) as error:
            raise Undecodable(Reason.WRONG_SCHEMA, f"the bytes do not fit their {name} schema: {error}") from None
        if body.tell() != len(value):
            raise Undecodable(Reason.TRAILING_BYTES, f"{len(value) - body.tell()} bytes follow the {name} record")
        return fields

    def _writer(self, name: str, value: bytes) -> Schema:
        schema = self.framing.writer(value)
        if schema is None:
            header = value[: self.framing.header_bytes].hex()
            raise Undecodable(Reason.UNKNOWN_SCHEMA, f"the record starts with {header!r}, which names no known schema")
        if schema.name != name:
            raise Undecodable(Reason.WRONG_SCHEMA, f"the record is one of {schema.name}, not of {name}")
        return schema

    # ------------------------------------------------------------------------------------------------- encode
    def encode_command(self, command: Command | Signal) -> bytes:
        """The value of the intake record that carries `command` (see `INTAKE_OF` for its topic).

        `at` and `timestamp` are not written: the broker and the partition's clock give them. Raises `Unencodable`.
        """
        name = INTAKE_OF[type(command)]
        fields: Fields = msgspec.to_builtins(command)
        envelope = {"command": (f"{NAMESPACE}.{type(command).__name__}", fields)}
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
        return self._written("dead_letters", fields)

    def _written(self, name: str, fields: Fields) -> bytes:
        body = BytesIO()
        body.write(self.framing.header(name))
        try:
            schemaless_writer(body, self.framing.schema(name).parsed, fields)
        except (ValueError, TypeError, OverflowError) as error:
            raise Unencodable(_culprit(name, fields) or f"{name}: {error}") from None
        return body.getvalue()


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
