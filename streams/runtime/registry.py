"""Schemas of a Confluent schema registry: records carry a four-byte id in place of a fingerprint.

The wire format is one zero byte, the id in network order, and the Avro body; a topic's schemas are registered under the
subject `<topic>-value`. https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

import httpx

import schemas
from schemas import NAMES, Schema, SchemaError
from streams.runtime.codec import Codec
from streams.topics import Topics

HEADER_BYTES: Final = 1 + 4
MAGIC: Final = b"\0"
TIMEOUT_S: Final = 5.0
# Ids that the registry does not know are remembered, so that a flood of garbage asks once; this many, then anew.
UNKNOWN_IDS_MAX: Final = 1024
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_NAME_OF_RECORD: Final = {schemas.current(name).full_name: name for name in NAMES}


class RegistryUnavailable(Exception):
    """The registry cannot be asked, or refuses; no record is to blame. The message names no credentials."""


class Registry:
    """A client of the registry's HTTP interface. Use it as an async context manager, or close it."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        parsed = httpx.URL(url)
        auth = (unquote(parsed.username), unquote(parsed.password)) if parsed.username else None
        # Without its credentials: httpx logs the address of each request.
        self.address = parsed.copy_with(userinfo=b"")
        self._client = httpx.AsyncClient(
            base_url=self.address, auth=auth, timeout=timeout_s, headers={"Accept": _MEDIA_TYPE}
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def id_of(self, subject: str, definition: str) -> int:
        """The id of the schema `definition` (JSON) under `subject`; it is registered when it is not yet."""
        body = {"schema": definition}
        found = await self._asked("POST", f"subjects/{subject}", body)
        if found is None:
            found = await self._asked("POST", f"subjects/{subject}/versions", body)
        if found is None:
            raise RegistryUnavailable(f"the schema registry {self.address} has no subjects: is the address right?")
        return int(found["id"])

    async def definition(self, schema_id: int) -> str | None:
        """The schema with that id, JSON; None: there is none."""
        found = await self._asked("GET", f"schemas/ids/{schema_id}", None)
        return None if found is None else str(found["schema"])

    async def _asked(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any] | None:
        """The registry's answer; None when it says that there is no such thing."""
        try:
            response = await self._client.request(method, path, json=body)
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise RegistryUnavailable(f"the schema registry {self.address} does not answer: {problem}") from None
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        if response.is_error:
            said = answer.get("message", "")
            raise RegistryUnavailable(
                f"the schema registry {self.address} refuses {path} with {response.status_code}: {said}"
            )
        return answer


class Confluent:
    """The framing that a registry gives: ids for what this release writes, schemas for what it reads."""

    header_bytes = HEADER_BYTES

    def __init__(self, registry: Registry, ids: dict[str, int]) -> None:
        self._registry = registry
        self._heads = {name: MAGIC + schema_id.to_bytes(4, "big") for name, schema_id in ids.items()}
        self._writers = {head: schemas.current(name) for name, head in self._heads.items()}
        self._unknown: set[bytes] = set()

    @classmethod
    async def connect(cls, registry: Registry, topics: Topics) -> Confluent:
        """Register what this release writes. Raises `RegistryUnavailable`."""
        return cls(
            registry,
            {
                name: await registry.id_of(
                    f"{topics.of_schema(name)}-value", json.dumps(schemas.current(name).definition)
                )
                for name in NAMES
            },
        )

    def header(self, name: str) -> bytes:
        return self._heads[name]

    def schema(self, name: str) -> Schema:
        return schemas.current(name)

    def writer(self, value: bytes) -> Schema | None:
        return self._writers.get(value[:HEADER_BYTES])

    async def learn(self, values: Iterable[bytes | None]) -> None:
        """Ask the registry for the schemas in the headers of `values` that were not met before."""
        heads = {value[:HEADER_BYTES] for value in values if value}
        for head in heads - self._writers.keys() - self._unknown:
            if len(head) == HEADER_BYTES and head.startswith(MAGIC):
                await self._learn(head)

    async def _learn(self, head: bytes) -> None:
        definition = await self._registry.definition(int.from_bytes(head[1:], "big"))
        schema = None if definition is None else _understood(definition)
        if schema is not None:
            self._writers[head] = schema
            return
        if len(self._unknown) >= UNKNOWN_IDS_MAX:
            self._unknown.clear()
        self._unknown.add(head)


def _understood(definition: str) -> Schema | None:
    """The schema in `definition`, under the name of the topic whose record it describes; None: it is not Avro of ours.

    A registry is shared with others: a record of theirs is a `wrong_schema`, named as they name it.
    """
    try:
        schema = schemas.parse("", definition)
    except SchemaError:
        return None
    return replace(schema, name=_NAME_OF_RECORD.get(schema.full_name, schema.full_name))


async def open_codec(registry: Registry | None, topics: Topics) -> Codec:
    """The codec of this deployment: in the registry's framing where there is one, else in single-object encoding."""
    return Codec() if registry is None else Codec(await Confluent.connect(registry, topics))
