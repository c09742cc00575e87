"""What a process waits for before it starts, and what it refuses: servers that answer, and tables and topics that are
this release's and belong together.

Servers that are started together come up in any order, so one that does not answer yet is waited for, within
`TURNLOG_START_WAIT_MS`; what would not mend itself (missing tables or topics, another deployment's) ends the start at
once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import psycopg
import structlog
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from prometheus_client import CollectorRegistry

from streams.fence.migrate import verify as verify_tables
from streams.fence.topics import database_id, kept_topics
from streams.runtime.belonging import Belonging, belong, namespace_after, owner_in, said
from streams.runtime.health import HealthServer
from streams.runtime.kafka import KafkaUnavailable
from streams.settings import Settings
from streams.topics import Topics, TopicsError, identities, require_same
from streams.topics import verify as verify_topics

log = structlog.get_logger(__name__)

AGAIN_AFTER_S = 0.5
TOLD_EVERY_S = 5.0
AWAY = (KafkaError, KafkaUnavailable, psycopg.OperationalError, OSError, TimeoutError)

T = TypeVar("T")


class Joined(NamedTuple):
    """What a process learns of its deployment: the count of partitions, and Kafka's id of each topic of record."""

    partitions: int
    topic_ids: Mapping[str, str]


class Awaited:
    """The servers that a process asks before it starts, and which of them did not answer. Read from any thread."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {"kafka": "not asked yet", "postgres": "not asked yet"}

    def answered(self, name: str) -> None:
        """This one is there."""
        self._errors[name] = ""

    def failed(self, name: str, error: str) -> None:
        """This one did not answer."""
        self._errors[name] = error

    def page(self) -> tuple[bool, dict[str, Any]]:
        """What `/readyz` answers meanwhile."""
        dependencies = {name: {"ok": not error, "error": error} for name, error in self._errors.items()}
        return False, {"ready": False, "state": "waiting", "dependencies": dependencies}


async def joined(settings: Settings, awaited: Awaited | None = None) -> Joined:
    """The deployment, once Kafka and Postgres answer and their topics and tables are this deployment's.

    `awaited` is kept up to date for a page of the caller's; None: while something is waited for, a page of its own
    answers on the metrics port. Raises `TopicsError` and `SchemaMismatch`, and the last error of a server that did not
    answer within the budget.
    """
    start = _Start(settings, awaited)
    try:
        return await start.joined()
    finally:
        start.close()


class _Start:
    def __init__(self, settings: Settings, awaited: Awaited | None) -> None:
        self._settings = settings
        self._topics = Topics(settings.namespace)
        self._limit_s = settings.request_timeout_ms / 1000
        self._awaited = awaited or Awaited()
        self._page: HealthServer | None = None
        if awaited is None:
            registry = CollectorRegistry()
            self._page = HealthServer(registry, healthy=lambda: (True, {}), ready=self._awaited.page)
        self._shown = False
        self._begun = time.monotonic()

    async def joined(self) -> Joined:
        settings = self._settings
        await self._answer("postgres", lambda: asyncio.to_thread(verify_tables, settings.postgres))
        partitions, found = await self._answer("kafka", self._ask_kafka)
        kept = await self._answer("postgres", lambda: asyncio.to_thread(kept_topics, settings.postgres, found))
        require_same(kept, found)
        await self._answer("kafka", self._require_owned)
        return Joined(partitions, found)

    def close(self) -> None:
        if self._page is not None:
            self._page.stop()

    async def _ask_kafka(self) -> tuple[int, dict[str, str]]:
        limit_ms = self._settings.request_timeout_ms
        admin = AIOKafkaAdminClient(bootstrap_servers=self._settings.kafka, request_timeout_ms=limit_ms)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await admin.start()
            return await self._verified(admin), await identities(admin, self._topics)
        except KafkaConnectionError as error:
            raise KafkaUnavailable(f"{self._settings.kafka} cannot be connected to") from error
        except TimeoutError as error:
            raise KafkaUnavailable(f"{self._settings.kafka} does not answer within {limit_ms} ms") from error
        finally:
            await admin.close()

    async def _verified(self, admin: AIOKafkaAdminClient) -> int:
        try:
            return await verify_topics(admin, self._topics)
        except TopicsError:
            # Topics that were moved, and deleted since, are not to be made anew.
            if self._topics.deployment in await admin.list_topics():
                _require_here(await said(self._settings.kafka, self._topics.deployment, self._limit_s))
            raise

    async def _require_owned(self) -> None:
        mine = await asyncio.to_thread(database_id, self._settings.postgres)
        kafka, topic = self._settings.kafka, self._topics.deployment
        records = await said(kafka, topic, self._limit_s)
        owner = owner_in(records) or await belong(kafka, topic, mine, self._limit_s)
        if owner != mine:
            where = f"namespace {self._topics.namespace!r}" if self._topics.namespace else "no namespace"
            raise TopicsError(
                f"the topics of {where} belong to another database ({owner}; this one is {mine}): two deployments must "
                "not share them. Use that database (TURNLOG_POSTGRES), or a namespace of your own (TURNLOG_NAMESPACE); "
                "where it is lost for good, `turnlog topic adopt` puts this one in its place"
            )
        _require_here(records)

    async def _answer(self, name: str, ask: Callable[[], Awaitable[T]]) -> T:
        told_at = -TOLD_EVERY_S
        while True:
            try:
                answer = await ask()
            except AWAY as error:
                waited_s = time.monotonic() - self._begun
                if waited_s * 1000 >= self._settings.start_wait_ms:
                    raise
                self._awaited.failed(name, _brief(error))
                self._show()
                if waited_s - told_at >= TOLD_EVERY_S:
                    told_at = waited_s
                    left_s = round(self._settings.start_wait_ms / 1000 - waited_s)
                    log.warning(
                        "waiting for a server that does not answer", server=name, error=_brief(error), left_s=left_s
                    )
                await asyncio.sleep(AGAIN_AFTER_S)
            else:
                self._awaited.answered(name)
                return answer

    def _show(self) -> None:
        if self._page is not None and not self._shown:
            self._shown = True
            url = self._page.start(self._settings.host, self._settings.metrics_port)
            log.info("waiting to start", readyz=f"{url}/readyz")


def _require_here(records: Sequence[Belonging]) -> None:
    """Raise `TopicsError` where the topics say that the deployment was moved to others."""
    namespace = namespace_after(records)
    if namespace is not None:
        raise TopicsError(
            f"this deployment was moved to topics with more partitions: set TURNLOG_NAMESPACE={namespace}. (Where "
            "the database was restored from before that: run the same `turnlog topic grow` again first)"
        )


def _brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
