"""`live` while Kafka is away: each try to reach it leaves nothing open behind it, and what waits is bounded."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from connectors.gateway.live_topic import WAITING_CHARS, WAITING_MAX, LiveTopic
from streams.runtime.live import LiveSignal, Shown, Typing
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


def test_what_waits_is_bounded_in_number_and_size_and_the_oldest_go() -> None:
    topics = Topics()
    settings = load_settings(kafka="127.0.0.1:1", postgres="postgresql://nobody@nowhere")
    live = LiveTopic(settings, topics.live, open_codec(None, topics), 1)
    lost: list[int] = []
    live.on_lost = lost.append
    for at in range(WAITING_MAX + 1):
        live.publish(LiveSignal(conversation_id="c", sender="ann", at=at, signal=Typing(active=True)))
    assert lost == [1]
    frame = "x" * (WAITING_CHARS // 2)
    for at in range(3):
        live.publish(LiveSignal(conversation_id="c", sender="bot", at=at, signal=Shown(frame)))
    left = [live._waiting.get_nowait() for _ in range(live._waiting.qsize())]
    assert [each.at for each in left] == [1, 2]
    assert len(lost) == WAITING_MAX + 2
