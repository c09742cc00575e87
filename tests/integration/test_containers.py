"""Kafka and Postgres from Docker, for machines where the embedded pair cannot be had."""

from __future__ import annotations

import psycopg
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.support import containers


@pytest.mark.skipif(not containers.docker_answers(), reason="no Docker engine answers on this machine")
async def test_the_containers_serve_kafka_and_postgres() -> None:
    with containers.start() as stack:
        admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
        await admin.start()
        try:
            await admin.create_topics([NewTopic("made", 1, 1)])
            assert "made" in await admin.list_topics()
        finally:
            await admin.close()
        with psycopg.connect(stack.postgres) as connection:
            assert connection.info.server_version // 10_000 == 18
