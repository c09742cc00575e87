"""`Transactions` of `hanging` on aiokafka's client, and what an operator may ask of a transaction's coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    InvalidProducerEpoch,
    KafkaError,
    NodeNotReadyError,
    NoError,
    TransactionCoordinatorFenced,
    for_code,
)

from streams.fence.port import Fenced
from streams.runtime.hanging import OpenTransaction, Outcome
from streams.runtime.kafka import RETRY_BACKOFF_MS, Doubt, KafkaUnavailable, asked
from streams.runtime.kafka_requests import (
    describe_producers,
    describe_transaction,
    end_transaction,
    list_transactions,
)

NO_TRANSACTION = -1
# aiokafka's name for FindCoordinator's key type of transactional ids.
TRANSACTION_COORDINATOR = 1
# TRANSACTIONAL_ID_NOT_FOUND of the protocol, which aiokafka has no class for.
UNKNOWN_TRANSACTIONAL_ID = 105
LIVE_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


class CoordinatorView(msgspec.Struct, frozen=True, gc=False):
    """What the coordinator knows of a transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int

    def holds(self, open_one: OpenTransaction) -> bool:
        """Whether the coordinator will end it by itself, sooner or later: it is not hanging."""
        return self.producer_id == open_one.producer_id and self.state in LIVE_STATES


class KafkaTransactions:
    """The open transactions of one topic, asked on one client that all partitions of a process share."""

    def __init__(self, bootstrap: str, topic: str, limit_s: float) -> None:
        self._topic = topic
        self._limit_s = limit_s
        self._bootstrap = bootstrap
        self._client: AIOKafkaClient | None = None
        self._starting = asyncio.Lock()

    async def unfinished(self, partition: int) -> Sequence[OpenTransaction]:
        """See the port."""
        answer = await self._ask_leader(partition, describe_producers(self._topic, partition))
        ((_, ((_, code, message, producers, _),), _),) = answer.topics
        self._require(code, f"cannot describe producers of {self._topic}[{partition}]: {message or ''}")
        return [
            OpenTransaction(producer_id, epoch, start, timestamp, coordinator_epoch)
            for producer_id, epoch, _, timestamp, coordinator_epoch, start, _ in producers
            if start != NO_TRANSACTION
        ]

    async def end(self, partition: int, of: OpenTransaction, producer_epoch: int, outcome: Outcome) -> None:
        """See the port."""
        request = end_transaction(
            self._topic,
            partition,
            producer_id=of.producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=max(of.coordinator_epoch, 0),
            commit=outcome is Outcome.COMMITTED,
        )
        try:
            answer = await self._ask_leader(partition, request)
        except KafkaUnavailable as error:
            if isinstance(error.__cause__, NodeNotReadyError):
                raise
            # It was sent, or may have been: whoever goes on needs a new epoch, which shuts a late marker out.
            raise Doubt(f"no answer to the marker for {of}: {error}") from error
        ((_, ((_, ((_, code, _),), _),), _),) = answer.markers
        if for_code(code) in (InvalidProducerEpoch, TransactionCoordinatorFenced):
            raise Fenced(f"Kafka refused the marker for {of}: a later epoch has written since")
        self._require(code, f"cannot end the transaction of {of}")

    async def named(self, producer_id: int) -> str | None:
        """The transactional id that this producer id was given to, if a coordinator still knows. One question a
        broker."""
        client = await self._started()
        for broker in client.cluster.brokers():
            answer = await asked(client.send(broker.nodeId, list_transactions(producer_id)), self._limit_s)
            self._require(answer.error_code, f"cannot list the transactions of broker {broker.nodeId}")
            for transactional_id, _, _, _ in answer.transaction_states:
                return str(transactional_id)
        return None

    async def coordinated(self, transactional_id: str) -> CoordinatorView | None:
        """What the coordinator of `transactional_id` knows; None: it knows none such."""
        client = await self._started()
        node = await asked(client.coordinator_lookup(TRANSACTION_COORDINATOR, transactional_id), self._limit_s)
        answer = await asked(client.send(node, describe_transaction(transactional_id)), self._limit_s)
        ((code, name, state, _, _, producer_id, epoch, _, _),) = answer.transaction_states
        if code == UNKNOWN_TRANSACTIONAL_ID:
            return None
        self._require(code, f"cannot describe {transactional_id}")
        return CoordinatorView(name, state, producer_id, epoch)

    async def close(self) -> None:
        """Close the client. Safe to repeat."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _ask_leader(self, partition: int, request: Any) -> Any:
        client = await self._started()
        leader = client.cluster.leader_for_partition(TopicPartition(self._topic, partition))
        if leader is None or leader < 0:
            client.force_metadata_update()
            raise KafkaUnavailable(f"{self._topic}[{partition}] has no leader now") from NodeNotReadyError()
        return await asked(client.send(leader, request), self._limit_s)

    def _require(self, code: int, what: str) -> None:
        error = for_code(code)
        if error is not NoError:
            if self._client is not None:
                self._client.force_metadata_update()  # the leader may be elsewhere by now
            raise KafkaUnavailable(f"{what}: {error.__name__}") from error()

    async def _started(self) -> AIOKafkaClient:
        async with self._starting:
            if self._client is None:
                client = AIOKafkaClient(
                    bootstrap_servers=self._bootstrap,
                    request_timeout_ms=int(self._limit_s * 1000),
                    retry_backoff_ms=RETRY_BACKOFF_MS,
                )
                try:
                    await asked(client.bootstrap(), self._limit_s)
                    await asked(client.set_topics([self._topic]), self._limit_s)
                except (KafkaUnavailable, KafkaError):
                    await client.close()
                    raise
                self._client = client
            return self._client
