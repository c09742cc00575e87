"""Fills the intake as gateways do: channels, a group with members, open conversations, turns."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aiokafka import AIOKafkaProducer

from ops.bench.floor import TEXT
from streams.core.commands import ApplyConfig, Command, CommitTurn, Join, OpenConversation
from streams.core.events import Turn
from streams.core.ids import message_id, turn_key
from streams.runtime.codec import Codec
from streams.runtime.partitioning import partition_of
from streams.runtime.signals import Heartbeat, Signal
from streams.topics import Topics

GATEWAY: Final = "gw-bench0000000"
MEMBERS: Final = 4
GROUP: Final = "agents/bench"
HEARTBEAT_EVERY_S: Final = 1.0

# Members count as settled at once: the usual state of a deployment, in which nobody joined within the last second.
DOCUMENT: Final = json.dumps(
    {
        "version": 1,
        "channels": [
            {"id": "web", "kind": "web", "active": True},
            {"id": "agents", "kind": "websocket", "active": True, "group_settle_ms": 0},
        ],
        "routes": [{"from": "web", "to": ["agents"]}],
    }
)


@dataclass(slots=True)
class Filler:
    """Writes the intake of one deployment with one producer."""

    producer: AIOKafkaProducer
    topics: Topics
    partitions: int
    codec: Codec

    async def roster(self) -> None:
        """The channels, and a gateway with `MEMBERS` members of one group, to every partition."""
        messages: list[Command | Signal] = [ApplyConfig(at=0, timestamp=0, version=1, document=DOCUMENT)]
        messages += [
            Join(
                at=0,
                timestamp=0,
                gateway=GATEWAY,
                n=n,
                member=f"{GATEWAY}.{n}",
                channel="agents",
                group=GROUP,
            )
            for n in range(1, MEMBERS + 1)
        ]
        await self._to_all(messages)

    async def keep_alive(self) -> None:
        """The gateway's heartbeats, without end."""
        while True:
            await self._to_all([Heartbeat(gateway=GATEWAY, n=MEMBERS, config_version=1)])
            await asyncio.sleep(HEARTBEAT_EVERY_S)

    async def _to_all(self, messages: Iterable[Command | Signal]) -> None:
        for message in messages:
            value = self.codec.encode_command(message)
            for partition in range(self.partitions):
                await self.producer.send(self.topics.membership, value, partition=partition)
        await self.producer.flush()

    async def conversations(self, number: int) -> list[str]:
        """Open so many conversations; their ids."""
        ids = [str(uuid.uuid4()) for _ in range(number)]
        await self.open(ids)
        return ids

    async def open(self, ids: Iterable[str]) -> None:
        """Open conversations of these ids."""
        for conversation in ids:
            await self._say(
                OpenConversation(at=0, timestamp=0, ref=_ref(), conversation_id=conversation, channel="web")
            )
        await self.producer.flush()

    async def turns(self, conversations: list[str], turns: int) -> None:
        """`turns` turns over the conversations in turn, each with an idempotency key."""
        for n in range(turns):
            await self.turn(conversations[n % len(conversations)], f"bench-{n}", TEXT)
        await self.producer.flush()

    async def turn(self, conversation: str, key: str, text: str) -> str:
        """One turn, not flushed; the ref of its command."""
        id_ = message_id(conversation, turn_key("user", key))
        turn = Turn(id=id_, sender="user", channel="web", type="text", key=key, text=text)
        ref = _ref()
        await self._say(CommitTurn(at=0, timestamp=0, ref=ref, conversation_id=conversation, turn=turn))
        return ref

    async def _say(self, command: OpenConversation | CommitTurn) -> None:
        conversation = command.conversation_id
        await self.producer.send(
            self.topics.turns,
            self.codec.encode_command(command),
            conversation.encode(),
            partition=partition_of(conversation, self.partitions),
        )


def _ref() -> str:
    return uuid.uuid4().hex


def producer_to(kafka: str) -> AIOKafkaProducer:
    """A producer for filling: large batches, a short wait for them."""
    return AIOKafkaProducer(
        bootstrap_servers=kafka, enable_idempotence=True, linger_ms=20, max_batch_size=1 << 17, max_request_size=1 << 21
    )
