"""Schemas of a Confluent schema registry: records carry a four-byte id in place of a fingerprint.

The wire format is one zero byte, the id in network order, and the Avro body; a topic's schemas are registered under the
subject `<topic>-value`. https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote

import httpx

import schemas
from schemas import NAMES, Schema, SchemaError
from streams.runtime.codec import Codec
from streams.runtime.kafka import KafkaUnavailable
from streams.topics import Topics

HEADER_BYTES: Final = 1 + 4
MAGIC: Final = b"\0"
# A request takes milliseconds; while it lasts the caller stands still, so that it must end long before a lease does.
TIMEOUT_S: Final = 2.0
# Ids that the registry does not know are remembered, so that a flood of garbage asks once; this many, then anew.
UNKNOWN_IDS_MAX: Final = 1024
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_NAME_OF_RECORD: Final = {schemas.current(name).full_name: name for name in NAMES}


class RegistryUnavailable(KafkaUnavailable):
    """The registry cannot be asked, or refuses; no record is to blame. The message names no credentials.

    To whoever reads and writes records it is a part of Kafka: without it they wait, as they do for a broker.
    """


class Registry:
    """A client of the registry's HTTP interface. It is asked so rarely that it keeps no connection."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        parsed = httpx.URL(url)
        self._auth = (unquote(parsed.username), unquote(parsed.password)) if parsed.username else None
        # Without its credentials: httpx logs the address of each request.
        self.address = str(parsed.copy_with(userinfo=b"")).rstrip("/")
        self._timeout_s = timeout_s

    def id_of(self, subject: str, definition: str) -> int:
        """The id of the schema `definition` (JSON) under `subject`; it is registered when it is not yet."""
        body = {"schema": definition}
        found = self._asked("POST", f"subjects/{subject}", body)
        if found is None:
            found = self._asked("POST", f"subjects/{subject}/versions", body)
        if found is None:
            raise RegistryUnavailable(f"the schema registry {self.address} has no subjects: is the address right?")
        return int(found["id"])

    def definition(self, schema_id: int) -> str | None:
        """The schema with that id, JSON; None: there is none."""
        found = self._asked("GET", f"schemas/ids/{schema_id}", None)
        return None if found is None else str(found["schema"])

    def _asked(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any] | None:
        """The registry's answer; None when it says that there is no such thing."""
        try:
            response = httpx.request(
                method,
                f"{self.address}/{path}",
                json=body,
                auth=self._auth,
                timeout=self._timeout_s,
                headers={"Accept": _MEDIA_TYPE},
            )
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
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

    def __init__(self, registry: Registry, topics: Topics) -> None:
        """Register what this release writes. Raises `RegistryUnavailable`."""
        self._registry = registry
        self._heads = {}
        for name in NAMES:
            definition = json.dumps(schemas.current(name).definition)
            schema_id = registry.id_of(f"{topics.of_schema(name)}-value", definition)
            self._heads[name] = MAGIC + schema_id.to_bytes(4, "big")
        self._writers = {head: schemas.current(name) for name, head in self._heads.items()}
        self._unknown: set[bytes] = set()

    def header(self, name: str) -> bytes:
        return self._heads[name]

    def schema(self, name: str) -> Schema:
        return schemas.current(name)

    def writer(self, value: bytes) -> Schema | None:
        """As `Framing.writer`. A schema that was not met before is asked for there and then, once for each new version
        of a writer: the caller waits for one request. Raises `RegistryUnavailable`."""
        head = value[:HEADER_BYTES]
        known = self._writers.get(head)
        if known is not None or head in self._unknown or len(head) < HEADER_BYTES or not head.startswith(MAGIC):
            return known
        definition = self._registry.definition(int.from_bytes(head[1:], "big"))
        schema = None if definition is None else _understood(definition)
        if schema is not None:
            self._writers[head] = schema
        else:
            if len(self._unknown) >= UNKNOWN_IDS_MAX:
                self._unknown.clear()
            self._unknown.add(head)
        return schema


def _understood(definition: str) -> Schema | None:
    """The schema in `definition`, under the name of the topic whose record it describes; None: it is not Avro of ours.

    A registry is shared with others: a record of theirs is a `wrong_schema`, named as they name it.
    """
    try:
        schema = schemas.parse("", definition)
    except SchemaError:
        return None
    return replace(schema, name=_NAME_OF_RECORD.get(schema.full_name, schema.full_name))


def open_codec(registry_url: str | None, topics: Topics) -> Codec:
    """The codec of a deployment: in its registry's framing where it has one, else in single-object encoding.

    With a registry it registers this release's schemas, which takes some requests: once, as a process starts. Raises
    `RegistryUnavailable`.
    """
    return Codec() if registry_url is None else Codec(Confluent(Registry(registry_url), topics))
