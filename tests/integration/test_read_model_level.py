"""Whoever asks the read model for all that a person said is told where it lacks what was said last."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
from aiokafka.admin import AIOKafkaAdminClient

import ops.conversations
from ops.cli.erase import _found
from ops.cli.errors import CommandFailed
from ops.conversations import unread
from streams.core.events import ConversationOpened, Entry
from streams.fence.migrate import migrate
from streams.settings import Settings
from streams.topics import Topics, ensure
from tests.support.projector import journal_writer


def opened(*lsns: int) -> Sequence[Entry]:
    event = ConversationOpened("web", "anna", conversation_id="c")
    return [Entry(lsn, lsn, lsn, 1, event) for lsn in lsns]


async def test_a_read_model_that_lacks_something_is_not_asked_for_all_of_a_person(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops.conversations, "CURRENT_WITHIN_S", 0.1)
    migrate(settings.postgres)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await ensure(admin, Topics(settings.namespace), partitions=2)
    finally:
        await admin.close()
    async with journal_writer(settings, 1) as journal:
        await journal.abort(opened(1))
        assert await unread(settings) == [], "what was aborted is not lacking"
        await journal.commit(opened(1))
        assert await unread(settings) == [1]
        with pytest.raises(CommandFailed, match="partitions 1"):
            await _found(settings, (), "anna", None)
        with psycopg.connect(settings.postgres, autocommit=True) as database:
            database.execute("INSERT INTO projector_positions (partition, lsn, journal_offset) VALUES (1, 1, 3)")
        assert await unread(settings) == []
        await journal.abort(opened(2))
        assert await unread(settings) == []
        assert await _found(settings, (), "anna", None) == []
