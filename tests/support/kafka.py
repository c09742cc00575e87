"""A topic namespace of a test's own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from aiokafka.admin import AIOKafkaAdminClient


@contextmanager
def namespace(bootstrap: str) -> Iterator[str]:
    """A name that no topic starts with yet; whatever topic does so later is deleted at the end."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    # In a thread of its own: the test's event loop, if it has one, stays as it is.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, _delete_topics(bootstrap, f"{name}.")).result()


async def _delete_topics(bootstrap: str, prefix: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        topics = [topic for topic in await admin.list_topics() if topic.startswith(prefix)]
        if topics:
            await admin.delete_topics(topics)
    finally:
        await admin.close()
