"""`live` while Kafka is away: each try to reach it leaves nothing open behind it."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from connectors.gateway.live_topic import LiveTopic
from streams.runtime.registry import open_codec
from streams.settings import load_settings
from streams.topics import Topics


@pytest.mark.parametrize("part", ["_write", "_read"])
async def test_a_start_that_fails_leaves_no_client_open(part: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port
        settings = load_settings(kafka=f"127.0.0.1:{closed.getsockname()[1]}", postgres="postgresql://nobody@nowhere")
        topics = Topics()
        left: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: left.append(context["message"]))
        live = LiveTopic(settings, topics.live, open_codec(None, topics), 1)
        with pytest.raises(KafkaConnectionError):
            await getattr(live, part)()
        del live
        gc.collect()
        assert left == []
