"""A deployment for tests of workers: topics and tables, someone who writes its intake, and a reader of its journal."""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from streams.core.commands import ApplyConfig, Command, CommitTurn, Join, OpenConversation
from streams.core.events import Entry, MemberJoined, Turn, TurnCommitted
from streams.core.fold import evolve
from streams.core.state import Partition
from streams.fence.migrate import migrate
from streams.runtime.codec import Codec
from streams.runtime.partitioning import partition_of
from streams.runtime.registry import open_codec
from streams.runtime.signals import Heartbeat, Signal
from streams.settings import Settings
from streams.topics import Topics, ensure
from tests.support.program import Program, program
from tests.support.sequencing import DOCUMENT, GATEWAY, GROUP
from tests.support.waiting import until

CODEC = Codec()
MEMBER = f"{GATEWAY}.1"
# A broker that was killed may take this long to come back on a busy machine; only a failing test waits it out.
PATIENCE_S = 90.0


class Deployment:
    """One namespace and one database, prepared; what gateways would write, and what everybody may read."""

    def __init__(self, settings: Settings, partitions: int, producer: AIOKafkaProducer) -> None:
        self.settings = settings
        self.partitions = partitions
        self.topics = Topics(settings.namespace)
        self.codec = open_codec(settings.schema_registry, self.topics)
        self._producer = producer
        self._n = 0

    async def say(self, command: Command | Signal, partitions: Iterable[int] | None = None) -> None:
        """Write an intake record where it belongs: by its conversation, or into these (or all) partitions."""
        conversation: str | None = getattr(command, "conversation_id", None)
        value = self.codec.encode_command(command)
        if conversation is not None:
            await self._producer.send_and_wait(
                self.topics.turns, value, conversation.encode(), partition=self.home(conversation)
            )
            return
        for partition in range(self.partitions) if partitions is None else partitions:
            await self._producer.send_and_wait(self.topics.membership, value, partition=partition)

    async def garbage(self, topic: str, partition: int, value: bytes | None, key: bytes | None = b"c") -> None:
        await self._producer.send_and_wait(topic, value, key, partition=partition)

    async def furnish(self, *members: str) -> None:
        """The document of channels, and these members of the agents' group."""
        await self.say(ApplyConfig(at=0, timestamp=0, version=1, document=DOCUMENT))
        for member in members:
            self._n += 1
            await self.say(
                Join(at=0, timestamp=0, gateway=GATEWAY, n=self._n, member=member, channel="agents", group=GROUP)
            )

    async def furnished(self, member: str) -> None:
        """Wait until every partition knows the member: what is said before, a worker may take before the document."""

        async def known() -> bool:
            of_each = (await self.journal()).values()
            return all(
                any(isinstance(e.event, MemberJoined) and e.event.member == member for e in entries)
                for entries in of_each
            )

        await until(known, limit_s=PATIENCE_S)

    async def beat(self) -> None:
        await self.say(Heartbeat(gateway=GATEWAY, n=self._n, config_version=1))

    async def open(self, conversation: str) -> None:
        await self.say(OpenConversation(at=0, timestamp=0, conversation_id=conversation, channel="web"))

    async def turn(self, conversation: str, text: str, key: str | None = None) -> None:
        turn = Turn(id=text, sender="ann", channel="web", type="text", text=text, key=key)
        await self.say(CommitTurn(at=0, timestamp=0, conversation_id=conversation, turn=turn))

    def home(self, conversation: str) -> int:
        return partition_of(conversation, self.partitions)

    # ------------------------------------------------------------------------------------------------- the journal
    async def journal(self) -> Mapping[int, Sequence[Entry]]:
        """The committed journal, by partition."""
        names = [TopicPartition(self.topics.conversations, partition) for partition in range(self.partitions)]
        entries: dict[int, list[Entry]] = {name.partition: [] for name in names}
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.settings.kafka, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            ends = await consumer.end_offsets(names)
            consumer.assign(names)
            while any([await consumer.position(name) < ends[name] for name in names]):
                for name, records in (await consumer.getmany(timeout_ms=100)).items():
                    entries[name.partition] += [self.codec.decode_entry(record.value) for record in records]
        finally:
            await consumer.stop()
        return entries

    async def turns(self) -> Mapping[str, list[str | None]]:
        """Texts of the committed turns by conversation, in order."""
        found: dict[str, list[str | None]] = {}
        for entries in (await self.journal()).values():
            for entry in entries:
                if isinstance(entry.event, TurnCommitted):
                    found.setdefault(entry.event.conversation_id or "", []).append(entry.event.turn.text)
        return found

    async def writers(self) -> Mapping[int, tuple[str, int]]:
        """Per partition, the worker and epoch of the last `WriterOpened`."""
        found: dict[int, tuple[str, int]] = {}
        for partition, entries in (await self.journal()).items():
            for entry in entries:
                if type(entry.event).__name__ == "WriterOpened":
                    found[partition] = (getattr(entry.event, "worker", ""), entry.writer_epoch)
        return found

    async def require_sound(self) -> None:
        """Invariants 1, 2 and 7 as the fold knows them: it refuses whatever cannot follow."""
        for partition, entries in (await self.journal()).items():
            state = Partition(partition)
            keys: set[tuple[str | None, str]] = set()
            for entry in entries:
                evolve(state, entry)
                if isinstance(entry.event, TurnCommitted) and (key := entry.event.turn.key) is not None:
                    assert (entry.event.conversation_id, key) not in keys, "an idempotency key was stored twice"
                    keys.add((entry.event.conversation_id, key))

    async def all_taken(self, expected: Mapping[str, list[str]]) -> None:
        """Wait until the journal holds these turns, and no others, in this order."""

        async def taken() -> bool:
            return sum(map(len, (await self.turns()).values())) >= sum(map(len, expected.values()))

        await until(taken, limit_s=PATIENCE_S)
        assert await self.turns() == expected

    # ------------------------------------------------------------------------------------------------- the workers
    @property
    def environment(self) -> Mapping[str, str]:
        fields = self.settings.model_dump(exclude_defaults=True)
        return {**os.environ, **{f"TURNLOG_{name.upper()}": str(value) for name, value in fields.items()}}

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[tuple[Program, str]]:
        """A worker process that is ready, and its id."""
        command = (sys.executable, "-m", "ops.cli", "worker", "-o", "json")
        async with program(*command, environment=self.environment) as running:
            ready = await running.until("ready")
            yield running, ready["id"]


@asynccontextmanager
async def deployment(settings: Settings, partitions: int) -> AsyncIterator[Deployment]:
    """Topics and tables made; the intake's producer open."""
    await asyncio.to_thread(migrate, settings.postgres)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await ensure(admin, Topics(settings.namespace), partitions=partitions)
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka, enable_idempotence=True) as producer:
        yield Deployment(settings, partitions, producer)


class Talk:
    """Turns in several conversations, written one after the other until stopped; each key is said twice.

    `worked`: a worker runs already. Without one, all of it waits in the intake, where the document comes first.
    """

    def __init__(self, place: Deployment, conversations: int = 12, *, worked: bool = True) -> None:
        self.said: dict[str, list[str]] = {f"c{n}": [] for n in range(conversations)}
        self._place = place
        self._worked = worked
        self._going = True
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._place.furnish(MEMBER)
        if self._worked:
            await self._place.furnished(MEMBER)
        for conversation in self.said:
            await self._place.open(conversation)
        number = 0
        while self._going:
            for conversation, texts in self.said.items():
                text = f"{conversation}-{number}"
                await self._place.turn(conversation, text, key=text)
                if number % 3 == 0:
                    await self._place.turn(conversation, text, key=text)
                texts.append(text)
            number += 1
            await self._place.beat()
            await asyncio.sleep(0.01)  # a pace, not a wait: some hundred turns a second

    async def some(self, number: int) -> None:
        """Wait until so many more rounds were said."""
        start = len(self.said["c0"])
        await until(lambda: self._task.done() or len(self.said["c0"]) >= start + number, limit_s=PATIENCE_S)
        if self._task.done():
            self._task.result()

    async def end(self) -> dict[str, list[str]]:
        self._going = False
        await self._task
        return self.said


def page(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:  # it is the answer, with the connection
            return error.code, error.read().decode()


async def shares(place: Deployment) -> dict[str, int]:
    """How many partitions each worker opened last."""
    counts: dict[str, int] = {}
    for worker, _ in (await place.writers()).values():
        counts[worker] = counts.get(worker, 0) + 1
    return counts


async def until_shared(place: Deployment, expected: dict[str, int]) -> None:
    async def shared() -> bool:
        return await shares(place) == expected

    try:
        await until(shared, limit_s=20)
    except TimeoutError:
        raise AssertionError(f"expected {expected}, got {await shares(place)}") from None
