"""Makes a hanging transaction on a real broker: open in its partition, unknown to its coordinator."""

from __future__ import annotations

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streams.runtime.kafka import Doubt
from streams.runtime.kafka_producers import KafkaJournalProducer
from streams.settings import Settings
from streams.topics import Topics

BROKER = "1"  # the embedded one's node.id


async def take_unverified(bootstrap: str) -> None:
    """From now on the broker takes transactional records without asking the coordinator for such a transaction."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        changed = {"transaction.partition.verification.enable": "false"}
        await admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, BROKER, changed)])
    finally:
        await admin.close()


class Forgotten(KafkaJournalProducer):
    """Its transaction becomes one that its coordinator knows nothing of, as in decision 12: open, and ended by
    nobody, on a broker that takes it unverified. `told`: its writer hears that it was committed."""

    def __init__(
        self, settings: Settings, partition: int, *, told: bool = False, transactional_id: str | None = None
    ) -> None:
        topics = Topics(settings.namespace)
        super().__init__(
            settings.kafka,
            topics.conversations,
            partition,
            transactional_id=transactional_id or topics.transactional_id(partition),
            timeout_ms=settings.transaction_timeout_ms,
            limit_s=settings.request_timeout_ms / 1000,
        )
        self._name = TopicPartition(topics.conversations, partition)
        self._told = told

    async def begin(self) -> None:
        await super().begin()
        # As if the coordinator had been asked to add the partition.
        self._producer._txn_manager._txn_partitions.add(self._name)

    async def commit(self) -> None:
        if not self._told:
            raise Doubt("the broker died")
