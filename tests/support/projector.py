"""A projector process started as a user starts it, and a journal to give it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from streams.core.events import Entry
from streams.runtime.codec import Codec
from streams.settings import Settings
from streams.topics import Topics

ROOT = Path(__file__).parents[2]
STOP_WITHIN_S = 20


class ProjectorProcess:
    """`faust -A streams.app worker` as a child process; use it as a context manager."""

    def __init__(self, settings: Settings, log: Path) -> None:
        environment = {
            **os.environ,
            "TURNLOG_KAFKA": settings.kafka,
            "TURNLOG_POSTGRES": settings.postgres,
            "TURNLOG_NAMESPACE": settings.namespace,
            "TURNLOG_READY": "json",
        }
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "faust", "-A", "streams.app", "worker"],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def __enter__(self) -> ProjectorProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def ready(self) -> dict[str, Any]:
        """Wait for the ready line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                document: dict[str, Any] = json.loads(line)
                return document
        raise AssertionError(f"ended with {self.process.wait()} before it was ready:\n{self.said()}")

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_WITHIN_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class JournalWriter:
    """Writes entries to one partition of the journal as a sequencer does: one transaction a batch."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._codec = Codec()

    async def commit(self, entries: Sequence[Entry]) -> None:
        async with self._producer.transaction():
            await self._send(entries)

    async def abort(self, entries: Sequence[Entry]) -> None:
        """What a writer leaves behind that died before its commit: in the log, never committed."""
        await self._producer.begin_transaction()
        await self._send(entries)
        await self._producer.abort_transaction()

    async def _send(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            conversation = entry.event.conversation_id
            key = None if conversation is None else conversation.encode()
            value = self._codec.encode_entry(entry)
            await self._producer.send_and_wait(self._topic, value, key=key, partition=self._partition)


@asynccontextmanager
async def journal_writer(settings: Settings, partition: int = 0) -> AsyncIterator[JournalWriter]:
    topics = Topics(settings.namespace)
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.kafka, transactional_id=topics.transactional_id(partition), acks="all"
    )
    await producer.start()
    try:
        yield JournalWriter(producer, topics.conversations, partition)
    finally:
        await producer.stop()
