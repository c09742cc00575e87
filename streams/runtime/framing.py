"""How a record names the schema that it was written with: the few bytes in front of the Avro body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import schemas
from schemas import Schema


class Framing(Protocol):
    """Where the codec finds schemas by header, and headers by schema."""

    header_bytes: int
    """Length of a header."""

    def header(self, name: str) -> bytes:
        """What each record of `name` (one of `schemas.NAMES`) that this release writes starts with."""

    def schema(self, name: str) -> Schema:
        """The schema that this release writes records of `name` with."""

    def writer(self, value: bytes) -> Schema | None:
        """The schema that `value`, a whole record, was written with; None: its header names none that is known."""


class SingleObject:
    """Avro's single-object encoding: the schema's fingerprint, looked up among the committed history."""

    header_bytes = schemas.SINGLE_OBJECT_HEADER_BYTES

    def __init__(self) -> None:
        self._writers: Mapping[bytes, Schema] = {h: s for name in schemas.NAMES for h, s in schemas.known(name).items()}

    def header(self, name: str) -> bytes:
        return schemas.current(name).header

    def schema(self, name: str) -> Schema:
        return schemas.current(name)

    def writer(self, value: bytes) -> Schema | None:
        return self._writers.get(value[: self.header_bytes])


SINGLE_OBJECT = SingleObject()
