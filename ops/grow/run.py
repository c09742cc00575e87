"""The whole move, in order: topics, keys, journals; then the database belongs to the new generation; then the old one
has no keys any more, and is marked. Interrupted anywhere, the same again goes on, and until the database's transaction
nothing has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiokafka import TopicPartition

from ops.grow.copying import Copied, Copier
from ops.grow.database import Database
from ops.grow.intake import ends_now, high
from ops.grow.plan import Plan
from ops.grow.split import CannotGrow
from ops.history import History
from ops.history.live import live_history
from ops.provision import connected_admin, replication_for
from streams.fence.topics import database_id
from streams.runtime.belonging import belong, move, owner_of
from streams.sealing.copies import KeyTopic
from streams.sealing.store import WrappedKey
from streams.topics import Topics, ensure, identities

Notify = Callable[[str], None]
INTAKE: Final = ("turns", "frames", "membership")


async def grow(plan: Plan, history: History, database: Database, by: str, notify: Notify) -> Mapping[int, Copied]:
    """Do it; what is in each new partition. Raises `CannotGrow`, and what the servers' clients raise."""
    copied: dict[int, Copied] = {}
    if not plan.switched:
        if plan.standing:
            raise CannotGrow("\n".join(plan.standing))
        found = await _new_topics(plan)
        await _own(plan, database)
        await _copy_keys(plan, database)
        async with live_history(plan.target) as new:
            copier = Copier(plan, history, new, by, notify)
            for old in plan.old:
                made = await copier.copy(old)
                for partition, there in made.items():
                    notify(f"partition {partition}: {there.events:,} events are there")
                copied |= made

        async def unchanged() -> None:
            await _require_unchanged(plan)

        await database.switch(found, {each: copied[each].writer_epoch for each in copied}, unchanged)
        notify("the database belongs to the new topics")
    if not plan.marked:
        await _forget_keys(plan)
        await _mark(plan, database)
    return dict(sorted(copied.items()))


async def _new_topics(plan: Plan) -> Mapping[str, str]:
    """Make them; Kafka's id of each one of record."""
    topics = Topics(plan.target.namespace)
    async with connected_admin(plan.target.kafka) as admin:
        await ensure(admin, topics, partitions=plan.partitions, replication=await replication_for(admin))
        found = await identities(admin, topics)
    if not plan.marked:
        names = [TopicPartition(getattr(topics, name), each) for name in INTAKE for each in range(plan.partitions)]
        taken = [name for name, end in (await high(plan.target.kafka, names)).items() if end]
        if taken:
            raise CannotGrow(
                f"{taken[0].topic} has records already: it is another deployment's. Choose another namespace with --to"
            )
    return found


async def _own(plan: Plan, database: Database) -> None:
    """The new topics belong to this database, before anything is in them."""
    topic, limit_s = Topics(plan.target.namespace).deployment, plan.settings.request_timeout_ms / 1000
    mine = await asyncio.to_thread(database_id, database.dsn)
    kafka = plan.settings.kafka
    owner = await owner_of(kafka, topic, limit_s) or await belong(kafka, topic, mine, limit_s)
    if owner != mine:
        raise CannotGrow(
            f"the topics of namespace {plan.target.namespace!r} belong to another database, {owner}: choose another "
            "namespace with --to"
        )


async def _copy_keys(plan: Plan, database: Database) -> None:
    """Keys that are not destroyed: a copy of one that is may still lie in the old topic, and must not in the new."""
    old, new = KeyTopic(plan.settings), KeyTopic(plan.target)

    async def seen(keys: Sequence[WrappedKey]) -> None:
        destroyed = await database.destroyed([key.id for key in keys])
        await new.put([key for key in keys if key.id not in destroyed])

    try:
        await old.all(seen)
    finally:
        await new.close()
        await old.close()


async def _forget_keys(plan: Plan) -> None:
    """Take the copies out of the old topic: what is erased from now on has its key destroyed in the new one alone."""
    old = KeyTopic(plan.settings)

    async def seen(keys: Sequence[WrappedKey]) -> None:
        await old.put([WrappedKey(key.id, key.conversation_id, None) for key in keys])

    try:
        await old.all(seen)
    finally:
        await old.close()


async def _require_unchanged(plan: Plan) -> None:
    after = await ends_now(plan.settings, len(plan.old))
    topic = Topics(plan.settings.namespace).conversations
    for old in plan.old:
        if after[TopicPartition(topic, old.partition)] != old.end:
            raise CannotGrow(
                f"{topic}[{old.partition}] has grown from {old.end} while it was copied: a worker ran. Stop it; the "
                "same command again goes on"
            )
    changed = [f"{name.topic}[{name.partition}]" for name, end in after.items() if plan.ends[name] != end]
    if changed:
        raise CannotGrow(
            f"{', '.join(changed)} has grown meanwhile: a gateway or connector runs. Stop it, let a worker take what "
            "it wrote, and stop the worker; the same command again goes on"
        )


async def _mark(plan: Plan, database: Database) -> None:
    mine = await asyncio.to_thread(database_id, database.dsn)
    topic, limit_s = Topics(plan.settings.namespace).deployment, plan.settings.request_timeout_ms / 1000
    await move(plan.settings.kafka, topic, mine, plan.target.namespace, limit_s)
