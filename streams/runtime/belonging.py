"""Which database the topics belong to.

Two deployments with one Kafka and one namespace, each with a database of its own, would fence each other for ever, and
each would take the other's conversations for its own. So a topic of one partition says whose the others are: the first
record there, and after it each that names the database whose place it takes. Of two that begin at the same moment the
first in that log has it, and both read which one that is.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from aiokafka import AIOKafkaProducer, TopicPartition

from streams.runtime.kafka import KafkaUnavailable, asked, consumer
from streams.topics import TopicsError


class Belonging(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record of the topic, JSON."""

    database: str
    instead_of: str | None = None
    """The database whose place it takes; None: it is the first."""
    moved_to: str | None = None
    """The namespace of the topics that have taken the place of these, with more partitions; None: none have."""


_decoder = msgspec.json.Decoder(Belonging)


def owner_in(records: Iterable[Belonging]) -> str | None:
    """The database that the topics belong to after these records; None: nobody's yet."""
    owner: str | None = None
    for record in records:
        if owner is None or record.instead_of == owner:
            owner = record.database
    return owner


def namespace_after(records: Iterable[Belonging]) -> str | None:
    """The namespace that the deployment was moved to; None: it was not."""
    return next((record.moved_to for record in records if record.moved_to is not None), None)


async def owner_of(bootstrap: str, topic: str, limit_s: float) -> str | None:
    """The database that the topics belong to; None: nobody's yet. Raises as `said`."""
    return owner_in(await said(bootstrap, topic, limit_s))


async def moved_to(bootstrap: str, topic: str, limit_s: float) -> str | None:
    """The namespace that the deployment was moved to; None: it was not. Raises as `said`."""
    return namespace_after(await said(bootstrap, topic, limit_s))


async def said(bootstrap: str, topic: str, limit_s: float) -> list[Belonging]:
    """All records of the topic, in order. Raises `KafkaUnavailable` and `TopicsError`."""
    return [record for _, record in await said_when(bootstrap, topic, limit_s)]


async def said_when(bootstrap: str, topic: str, limit_s: float) -> list[tuple[int, Belonging]]:
    """All records of the topic, in order, with the time in ms at which each was written. Raises as `said`."""
    reader = consumer(bootstrap, limit_s)
    place = TopicPartition(topic, 0)
    records: list[tuple[int, Belonging]] = []
    try:
        await asked(reader.start(), limit_s)
        end = (await asked(reader.end_offsets([place]), limit_s))[place]
        reader.assign([place])
        reader.seek(place, 0)
        while await asked(reader.position(place), limit_s) < end:
            found = await asked(reader.getmany(place, timeout_ms=int(limit_s * 1000)), 2 * limit_s)
            if not found:
                raise KafkaUnavailable(f"{topic} cannot be read to its end within {limit_s:g} s")
            records += [(record.timestamp, _decoder.decode(record.value)) for record in found[place]]
    except msgspec.DecodeError as error:
        raise TopicsError(f"{topic} has a record that no release of Turnlog wrote: {error}") from error
    finally:
        await reader.stop()
    return records


async def belong(
    bootstrap: str, topic: str, database: str, limit_s: float, *, instead_of: str | None = None
) -> str | None:
    """Say that the topics belong to `database`; whose they are then. Raises `KafkaUnavailable` and `TopicsError`."""
    await _say(bootstrap, topic, Belonging(database, instead_of), limit_s)
    return await owner_of(bootstrap, topic, limit_s)


async def move(bootstrap: str, topic: str, database: str, namespace: str, limit_s: float) -> None:
    """Say that the topics of `namespace` have taken the place of these, which are `database`'s. Raises as `belong`."""
    await _say(bootstrap, topic, Belonging(database, database, namespace), limit_s)


async def _say(bootstrap: str, topic: str, record: Belonging, limit_s: float) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", request_timeout_ms=int(limit_s * 1000))
    try:
        await asked(producer.start(), limit_s)
        await asked(producer.send_and_wait(topic, msgspec.json.encode(record), partition=0), limit_s)
    finally:
        await producer.stop()
