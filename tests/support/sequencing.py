"""A sequencer's world in memory: fakes of Kafka and Postgres, the real codec and the real core."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from streams.core.commands import (
    ApplyConfig,
    Command,
    CommitTurn,
    Join,
    Leave,
    OpenConversation,
)
from streams.core.events import Entry, Turn
from streams.fence.memory import MemoryCheckpoints, MemoryLeases, MemoryStore
from streams.fence.port import Lease
from streams.runtime.codec import Codec
from streams.runtime.commit import DeadLetters
from streams.runtime.metrics import WorkerMetrics
from streams.runtime.partitioning import partition_of
from streams.runtime.ports import Limits, Ports
from streams.runtime.signals import Signal
from streams.runtime.writer import Writer
from tests.support.fake_kafka import FakeKafka, FakeOutbox

GATEWAY = "gw-000000000001"
GROUP = "agents/bots"
DOCUMENT = json.dumps(
    {
        "version": 1,
        "channels": [
            {"id": "web", "kind": "web", "active": True},
            {"id": "agents", "kind": "websocket", "active": True, "group_settle_ms": 0},
        ],
        "routes": [{"from": "web", "to": ["agents"]}],
    }
)
LIMITS = Limits(
    batch_max=4_000,
    tick_ms=1_000,
    member_ttl_ms=5_000,
    checkpoint_every_ms=3_600_000,
    checkpoint_every_events=1_000_000,
    idle_conversations_max=50_000,
)


@dataclass(slots=True)
class FakeKeeper:
    """`LeaseKeeper`: says what the test says."""

    good: bool = True
    watched: list[Lease] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)

    def watch(self, lease: Lease, asked_at: float) -> None:
        self.watched.append(lease)

    def forget(self, partition: int) -> None:
        self.forgotten.append(partition)

    def may_write(self, lease: Lease) -> bool:
        return self.good


class World:
    """One cluster, one store, and as many workers as a test wants."""

    def __init__(self, partitions: int = 1, limits: Limits = LIMITS) -> None:
        self.kafka = FakeKafka()
        self.store = MemoryStore()
        self.partitions = partitions
        self.limits = limits
        self.codec = Codec()
        self._n = 0

    def ports(self, worker: str = "wk-000000000001") -> Ports:
        outbox = FakeOutbox(self.kafka)
        return Ports(
            worker=worker,
            partitions=self.partitions,
            membership_topic=self.kafka.topics.membership,
            limits=self.limits,
            leases=MemoryLeases(self.store, worker),
            checkpoints=MemoryCheckpoints(self.store),
            codec=self.codec,
            outbox=outbox,
            dead_letters=DeadLetters(outbox, self.codec, self.kafka.topics.dead_letters),
            new_producer=self.kafka.producer,
            new_reader=self.kafka.reader,
            new_intake=self.kafka.intake,
            transactions=self.kafka.transactions(),
            keeper=FakeKeeper(),
            metrics=WorkerMetrics(),
        )

    async def writer(self, worker: str = "wk-000000000001", partition: int = 0, **changes: object) -> Writer:
        """An opened writer of a freshly claimed lease; the holder before, if any, counts as dead."""
        ports = replace(self.ports(worker), **changes)  # type: ignore[arg-type]
        if partition in self.store.leases:
            self.store.leases[partition].expires_at = 0
        await ports.leases.open()
        lease = await ports.leases.claim(partition)
        assert isinstance(lease, Lease)
        writer = Writer(lease, ports)
        await writer.open()
        return writer

    # ------------------------------------------------------------------------------------------ what others write
    def say(self, command: Command | Signal, partition: int = 0) -> int:
        """Put an intake record; returns its offset."""
        topic, key = self._where(command)
        value = self.codec.encode_command(command)
        return self.kafka.append(topic, partition, key, value).offset

    def _where(self, command: Command | Signal) -> tuple[str, bytes | None]:
        topics = self.kafka.topics
        conversation: str | None = getattr(command, "conversation_id", None)
        if conversation is None:
            return topics.membership, None
        kind = topics.frames if type(command).__name__ == "CommitFrame" else topics.turns
        return kind, conversation.encode()

    def configure(self) -> None:
        self.say(ApplyConfig(at=0, timestamp=0, version=1, document=DOCUMENT))

    def join(self, member: str = f"{GATEWAY}.1") -> None:
        self._n += 1
        self.say(Join(at=0, timestamp=0, gateway=GATEWAY, n=self._n, member=member, channel="agents", group=GROUP))

    def leave(self, member: str = f"{GATEWAY}.1", frames_end: int = 0) -> None:
        self._n += 1
        self.say(
            Leave(at=0, timestamp=0, gateway=GATEWAY, n=self._n, member=member, reason="left", frames_end=frames_end)
        )

    def converse(self, conversation_id: str) -> None:
        self.say(OpenConversation(at=0, timestamp=0, conversation_id=conversation_id, channel="web", participant="ann"))

    def turn(self, conversation_id: str, text: str, key: str | None = None, ref: str | None = None) -> None:
        turn = Turn(id=f"id-{text}", sender="ann", channel="web", type="text", text=text, key=key)
        self.say(CommitTurn(at=0, timestamp=0, conversation_id=conversation_id, turn=turn, ref=ref))

    # ------------------------------------------------------------------------------------------------ what came out
    def journal(self, partition: int = 0) -> Sequence[Entry]:
        """The committed journal."""
        readable = self.kafka.readable(self.kafka.topics.conversations, partition)
        return [self.codec.decode_entry(record.value) for record in readable]

    def kinds(self, partition: int = 0) -> Sequence[str]:
        return [type(entry.event).__name__ for entry in self.journal(partition)]

    def ids_in(self, partition: int, count: int) -> list[str]:
        """Conversation ids that belong to `partition`."""
        found: list[str] = []
        number = 0
        while len(found) < count:
            if partition_of(f"c{number}", self.partitions) == partition:
                found.append(f"c{number}")
            number += 1
        return found


async def settle(writer: Writer) -> None:
    """Turn until the intake has nothing more."""
    while await writer.turn():
        pass
