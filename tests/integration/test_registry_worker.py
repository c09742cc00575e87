"""A worker where a schema registry is set: the same turns, in the registry's wire format from end to end."""

from __future__ import annotations

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.settings import Settings
from tests.support.deployment import MEMBER, deployment
from tests.support.registry import FakeRegistry, running


async def test_turns_go_through_a_worker_in_the_registrys_wire_format(settings: Settings) -> None:
    with running(FakeRegistry(password="ana:secret")) as registry:
        address = registry.url.replace("://", "://ana:secret@")
        async with deployment(settings.model_copy(update={"schema_registry": address}), 1) as place:
            async with place.worker():
                await place.furnish(MEMBER)
                await place.furnished(MEMBER)
                await place.open("c")
                await place.turn("c", "good morning")
                await place.garbage(place.topics.turns, 0, b"\0\0\0\0\x63 an id that nobody registered")
                await place.turn("c", "good evening")
                await place.all_taken({"c": ["good morning", "good evening"]})
            reader = AIOKafkaConsumer(bootstrap_servers=settings.kafka, auto_offset_reset="earliest")
            await reader.start()
            try:
                journal = TopicPartition(place.topics.conversations, 0)
                reader.assign([journal])
                record = await reader.getone()
            finally:
                await reader.stop()
            [journal_id] = registry.subjects[f"{place.topics.conversations}-value"]
            assert record.value[:5] == b"\0" + journal_id.to_bytes(4, "big")
            assert registry.calls.count("GET /schemas/ids/99") == 1
