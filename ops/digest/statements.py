"""A sealed segment: which records a partition had, hashed, chained to what was sealed before, and signed.

    digests/p00003/<start>.json                     the signed statement, made once or not at all
    leaves/p00003/<start>-<end>-<some hex>.leaves   the leaf hashes that it speaks of, by the SHA-256 of this file

The statement is text (JSON) inside of its envelope, so that what was signed is what is read, whatever writes JSON. It
names the hash of the statement before it: none can be taken out, put in or replaced without a key that is trusted. The
last ones can be cut off, which no chain shows by itself: note the head that `turnlog digest list` prints elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from ops.digest.keys import SigningKey, Trust
from ops.digest.leaves import LEAF_BYTES
from ops.history.place import Place
from ops.history.port import HistoryUnavailable, Range

VERSION: Final = 1
DIGITS: Final = 20
LEAVES: Final = ".leaves"
CONTEXT: Final = b"turnlog digest 1\n"
"""What is signed begins with this, so that no signature of a key can be taken for one of another purpose."""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """What was there, as it was when it was sealed."""

    version: int = VERSION
    topic_id: str
    """Kafka's id of the journal's topic."""
    partition: int
    start: int
    end: int
    gone: bool = False
    """It could not be read any more when it was to be sealed, and a person said to go on behind it."""
    records: int
    first_lsn: int | None
    last_lsn: int | None
    leaves: str
    """Name of the file with the leaf hashes."""
    leaves_sha256: str
    previous: str
    """SHA-256 (hex) of the text of the statement before; empty: it is the first of its partition."""
    sealed_at: str
    key_id: str

    @property
    def range(self) -> Range:
        """Its offsets."""
        return Range(self.start, self.end)


class Envelope(msgspec.Struct, frozen=True):
    """A statement's file."""

    statement: str
    key_id: str
    signature: str
    """Hex, of `CONTEXT` and the statement's text in UTF-8."""


class Leaves(msgspec.Struct, frozen=True):
    """The records of a segment, by hash: enough to say which one differs, and whose it was."""

    offsets: list[int]
    hashes: bytes
    """`LEAF_BYTES` for each offset."""
    lsns: list[int]
    """0: it was no entry."""
    conversations: list[str]
    of: list[int]
    """Index into `conversations` for each offset; -1: it is of none."""

    def hash_at(self, index: int) -> bytes:
        """The leaf hash of the record of that index."""
        return self.hashes[index * LEAF_BYTES : (index + 1) * LEAF_BYTES]

    def conversation_at(self, index: int) -> str | None:
        """Whose it was."""
        return None if self.of[index] < 0 else self.conversations[self.of[index]]


class Sealed(msgspec.Struct, frozen=True):
    """A statement as it was found."""

    statement: Statement
    envelope: Envelope
    hash: str
    """SHA-256 of its text: the chain's head once it is the last one."""

    def problem(self, trust: Trust) -> str | None:
        """Why it is not to be believed; None: it is."""
        envelope = self.envelope
        if envelope.key_id != self.statement.key_id:
            return f"is signed with key {envelope.key_id} and says {self.statement.key_id}"
        if not trust.knows(envelope.key_id):
            return f"is signed with key {envelope.key_id}, which is not trusted"
        try:
            signature = bytes.fromhex(envelope.signature)
        except ValueError:
            signature = b""
        if not trust.verifies(envelope.key_id, signature, CONTEXT + envelope.statement.encode()):
            return f"has a signature that key {envelope.key_id} did not make"
        return None


def seal(statement: Statement, key: SigningKey) -> bytes:
    """The signed file of a statement."""
    text = msgspec.json.encode(statement)
    envelope = Envelope(text.decode(), key.id, key.sign(CONTEXT + text).hex())
    return msgspec.json.format(msgspec.json.encode(envelope)) + b"\n"


def statement_folder(partition: int) -> str:
    """Where a partition's statements lie."""
    return f"digests/p{partition:05}"


def statement_name(partition: int, start: int) -> str:
    """The one name of a segment that starts there."""
    return f"{statement_folder(partition)}/{start:0{DIGITS}}.json"


def partitions_at(place: Place) -> list[int]:
    """The partitions of which there are digests."""
    folders = (name.split("/")[1] for name in place.names("digests"))
    return sorted({int(folder[1:]) for folder in folders if folder[:1] == "p" and folder[1:].isdecimal()})


def leaves_folder(partition: int) -> str:
    """Where a partition's leaf hashes lie."""
    return f"leaves/p{partition:05}"


def leaves_name(partition: int, segment: Range, unique: str) -> str:
    """A name for a file of leaf hashes that no other sealer uses."""
    return f"{leaves_folder(partition)}/{segment.start:0{DIGITS}}-{segment.end:0{DIGITS}}-{unique}{LEAVES}"


class BadStatement(HistoryUnavailable):
    """A file that is no statement, or no leaf hashes of one."""


class Digests:
    """The digests at a place. Statements never change, so that only new ones are read again."""

    def __init__(self, place: Place, trust: Trust) -> None:
        self.place = place
        self.trust = trust
        self._known: dict[str, Sealed] = {}

    def chain(self, partition: int) -> Sequence[Sealed]:
        """A partition's statements in the order of their names, believed or not. Raises `BadStatement`."""
        names = [name for name in self.place.names(statement_folder(partition)) if name.endswith(".json")]
        for name, content in self.place.read([name for name in names if name not in self._known]).items():
            self._known[name] = self._sealed(name, content)
        return [self._known[name] for name in names]

    def _sealed(self, name: str, content: bytes) -> Sealed:
        try:
            envelope = msgspec.json.decode(content, type=Envelope)
            statement = msgspec.json.decode(envelope.statement, type=Statement)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadStatement(f"{self.place.address}/{name} is no digest: {error}") from error
        if statement.version != VERSION:
            raise BadStatement(f"{self.place.address}/{name} has version {statement.version}; this release: {VERSION}")
        return Sealed(statement, envelope, hashlib.sha256(envelope.statement.encode()).hexdigest())

    def leaves(self, statement: Statement) -> Leaves:
        """The leaf hashes that a statement speaks of. Raises `BadStatement` when they are not those."""
        if self.place.size(statement.leaves) is None:
            raise BadStatement(f"{self.place.address}/{statement.leaves} is not there")
        content = self.place.read([statement.leaves])[statement.leaves]
        if hashlib.sha256(content).hexdigest() != statement.leaves_sha256:
            raise BadStatement(f"{self.place.address}/{statement.leaves} is not the file that was sealed")
        return msgspec.msgpack.decode(content, type=Leaves)
