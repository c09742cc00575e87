"""Whether a deployment may be grown now, and what there is to move. Changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import TopicPartition

from ops.grow.database import Database
from ops.grow.intake import ends_now, untaken
from ops.grow.split import GROWN, CannotGrow, Split, concerned
from ops.history import History
from ops.provision import connected_admin
from streams.core.events import BatchCommitted, Entry, OperatorActed
from streams.fence.port import Positions
from streams.fence.topics import database_id
from streams.runtime.belonging import moved_to, owner_of
from streams.settings import NAMESPACE_RULE, Settings
from streams.topics import Topics, identities, require_same, verify

Notify = Callable[[str], None]

TAIL_RECORDS: Final = 64


@dataclass(frozen=True, slots=True)
class Old:
    """One partition of the old generation."""

    partition: int
    end: int
    """Journal offset after what is committed."""
    last: Entry | None
    """None: nothing was ever written."""


@dataclass(slots=True)
class Part:
    """One new partition: what it gets."""

    partition: int
    of: int
    events: int = 0
    conversations: set[str] = field(default_factory=set, repr=False)

    def document(self) -> dict[str, Any]:
        """For people and scripts."""
        return {
            "partition": self.partition,
            "from": self.of,
            "events": self.events,
            "conversations": len(self.conversations),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be moved, from where to where."""

    settings: Settings
    target: Settings
    """The same servers, in the namespace of the new generation."""
    partitions: int
    old: Sequence[Old]
    ends: Mapping[TopicPartition, int]
    """Where the old journal, turns and frames ended, before anything else was looked at."""
    standing: Sequence[str]
    """What stands in the way, each with its way out."""
    switched: bool
    """The database belongs to the new generation already."""
    marked: bool
    """The old generation says that it was moved there."""

    def made_of(self, old: Old) -> Sequence[int]:
        """The new partitions that an old one becomes."""
        return range(old.partition, self.partitions, len(self.old))

    def split(self, partition: int, by: str) -> Split:
        """The making of one new partition's journal; its first event says what was done, and by whom."""
        subject = f"{Topics(self.settings.namespace).conversations}/{partition % len(self.old)}"
        begun = OperatorActed(
            action=GROWN,
            subject=subject,
            by=by,
            reason=f"{len(self.old)} partitions become {self.partitions}",
            id=f"{subject}/{self.partitions}",
        )
        return Split(partition, self.partitions, begun=begun)


def next_namespace(namespace: str) -> str:
    """The namespace of the generation after: `g2` after none, `shop.g2` after `shop`, `shop.g3` after that."""
    found = re.fullmatch(r"(?:(.*)\.)?g(\d+)", namespace)
    if found is None:
        return f"{namespace}.g2" if namespace else "g2"
    before, number = found[1], int(found[2]) + 1
    return f"{before}.g{number}" if before else f"g{number}"


def require_count(present: int, wanted: int) -> None:
    """Raise `CannotGrow` unless each new partition is a part of one old one."""
    if wanted <= present or wanted % present:
        raise CannotGrow(
            f"--partitions {wanted}: there are {present} now, and the new count must be a multiple of that "
            f"({present * 2}, {present * 3}, {present * 4}, …), so that no two old partitions become one"
        )


async def planned(
    settings: Settings, history: History, database: Database, partitions: int, namespace: str | None
) -> Plan:
    """Look at everything. Raises `CannotGrow` for what nobody can put right by waiting or stopping something."""
    target = target_of(settings, namespace)
    topics, limit_s = Topics(settings.namespace), settings.request_timeout_ms / 1000
    require_count(history.partitions, partitions)
    async with connected_admin(settings.kafka) as admin:
        await verify(admin, topics)
        found = await identities(admin, topics)
    moved = await moved_to(settings.kafka, topics.deployment, limit_s)
    if moved not in {None, target.namespace}:
        raise CannotGrow(f"this deployment was moved to the namespace {moved!r} already: grow that one")
    kept = await database.kept_topics()
    switched = set(kept) == set(Topics(target.namespace).of_record)
    if not switched:
        if not kept:
            raise CannotGrow(
                "no process was ever started with this database: there is nothing to move. Make the topics with the "
                "count that you want: `turnlog topic ensure --partitions N`"
            )
        require_same(kept, found)
        await _require_owner(settings, database)
    old: list[Old] = []
    standing: list[str] = []
    ends = await ends_now(settings, history.partitions)
    if not switched:
        standing += await database.in_the_way()
        checkpoints = await database.positions()
        old = [await _old(history, partition) for partition in range(history.partitions)]
        if moved is None:
            standing += await untaken(settings, {each.partition: covered(each, checkpoints) for each in old})
    return Plan(settings, target, partitions, old, ends, standing, switched, moved is not None)


def target_of(settings: Settings, namespace: str | None) -> Settings:
    """The settings of the new generation."""
    name = next_namespace(settings.namespace) if namespace is None else namespace
    if not name or name == settings.namespace or re.fullmatch(NAMESPACE_RULE, name) is None:
        raise CannotGrow(f"--to {name!r}: another namespace than the present one, of letters, digits, `.`, `_` and `-`")
    return settings.model_copy(update={"namespace": name})


async def _require_owner(settings: Settings, database: Database) -> None:
    mine = await asyncio.to_thread(database_id, database.dsn)
    owner = await owner_of(settings.kafka, Topics(settings.namespace).deployment, settings.request_timeout_ms / 1000)
    if owner != mine:
        raise CannotGrow(f"the topics belong to another database, {owner}; this one is {mine}")


async def _old(history: History, partition: int) -> Old:
    for gone in await history.missing(partition):
        raise CannotGrow(
            f"offsets {gone} of partition {partition} of the journal are missing: give an archive of them (--archive)"
        )
    end = (await history.bounds(partition)).end
    return Old(partition, end, await last_entry(history, partition))


def covered(old: Old, checkpoints: Mapping[int, tuple[int, Positions]]) -> Positions:
    """Up to where a partition's intake was taken: what decided nothing is in the checkpoint alone."""
    if old.last is None:
        return Positions()
    batch = old.last.event
    if not isinstance(batch, BatchCommitted):
        raise CannotGrow(
            f"partition {old.partition}: its journal ends with a {type(batch).__name__}, in the middle of a batch: "
            "`turnlog audit verify` tells more"
        )
    lsn, positions = checkpoints.get(old.partition, (0, Positions()))
    return positions if lsn == old.last.lsn else Positions(batch.turns, batch.frames, batch.membership)


async def last_entry(history: History, partition: int) -> Entry | None:
    """The last that is committed in the partition; None: nothing is."""
    kept = await history.bounds(partition)
    size = TAIL_RECORDS
    while True:
        start, last = max(kept.start, kept.end - size), None
        async for chunk in history.read(partition, start, kept.end):
            last = chunk[-1]
        if last is not None:
            return history.decode(last)
        if start == kept.start:
            return None
        size *= 8  # markers and what was aborted are no records


# -------------------------------------------------------------------------------------------------------- counting
async def counted(plan: Plan, history: History, by: str, notify: Notify) -> list[Part]:
    """What each new partition gets, by reading all of the old journal."""
    parts: list[Part] = []
    for old in plan.old:
        mine = [Part(partition, old.partition) for partition in plan.made_of(old)]
        new = {part.partition: (part, plan.split(part.partition, by)) for part in mine}
        notify(f"partition {old.partition}: counting {0 if old.last is None else old.last.lsn:,} events")
        async for chunk in history.read(old.partition, 0, old.end):
            for entry in history.decode_all(chunk):
                for part, split in concerned(entry, new, plan.partitions):
                    for made in split.take(entry):
                        part.events += 1
                        if made.event.conversation_id is not None:
                            part.conversations.add(made.event.conversation_id)
        parts += mine
    return sorted(parts, key=lambda part: part.partition)
