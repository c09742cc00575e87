"""Conversations as operators see them: from the read model once it is current, else from the journal itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from aiokafka import TopicPartition

from ops.database import Database
from ops.history.live import live_history
from ops.history.port import History, Missing
from ops.journal import REQUEST_LIMIT_S, Opened, entries_of, is_erased, partition_count
from streams.core.commands import Command
from streams.core.fold import evolve
from streams.core.state import Partition
from streams.fence.port import FenceUnavailable
from streams.projector.read import ReadModel
from streams.runtime.kafka import bounds, consumer
from streams.runtime.partitioning import partition_of
from streams.sealing.records import has_words, key_ids_of
from streams.settings import Settings
from streams.topics import Topics

CURRENT_WITHIN_S: Final = 3.0
"""How long the read model may take to reach what was committed before it is done without."""
POLL_S: Final = 0.02

RUN_FIELDS: Final = ("run_id", "turn_seq", "group", "member", "run_epoch")

Notify = Callable[[str], None]


async def listed(
    settings: Settings, *, limit: int, status: str | None, channel: str | None
) -> Sequence[dict[str, Any]]:
    """Conversations of the read model, the latest change first."""
    read_model = ReadModel(settings.postgres, sessions=1)
    try:
        page, _ = await read_model.conversations(limit=limit, status=status, channel=channel)
        return [msgspec.to_builtins(row) for row in page]
    finally:
        await read_model.close()


async def opened(settings: Settings, conversation: str) -> Opened | None:
    """When it was opened, by the read model; None: it does not have it, or does not answer."""
    read_model = ReadModel(settings.postgres, sessions=1)
    try:
        row = await read_model.conversation(conversation)
    except FenceUnavailable:  # the journal has all of it: it only takes longer
        return None
    finally:
        await read_model.close()
    return None if row is None else Opened(conversation, row.opened_at)


async def erased_of(settings: Settings, command: Command) -> Sequence[str]:
    """The command's conversation, if the journal says that it is erased; of sealed words the keys say it."""
    name: str | None = getattr(command, "conversation_id", None)
    if name is None or not has_words(command) or any(key_ids_of(command)):
        return ()
    partition = partition_of(name, await partition_count(settings))
    return (name,) if await is_erased(settings, partition, name, await opened(settings, name)) else ()


async def shown(settings: Settings, conversation: str, notify: Notify) -> dict[str, Any] | None:
    """One conversation as of what was committed when it was asked; None: there is none."""
    partition = partition_of(conversation, await partition_count(settings))
    epoch = await _writer_epoch(settings, partition)
    read_model = ReadModel(settings.postgres, sessions=1)
    try:
        if await is_current(settings, read_model, partition):
            return await _from_read_model(read_model, conversation, partition, epoch)
    finally:
        await read_model.close()
    notify("the read model is behind (does a projector run?): reading the journal of the partition")
    return await _from_journal(settings, conversation, partition, epoch)


async def knows_member(settings: Settings, partition: int, member: str) -> bool | None:
    """Whether the member is there, by the read model; None: that is behind in this partition."""
    read_model = ReadModel(settings.postgres, sessions=1)
    try:
        if any(row.member == member for row in await read_model.members()):
            return True
        if not await is_current(settings, read_model, partition):
            return None
        return any(row.member == member for row in await read_model.members())
    finally:
        await read_model.close()


async def is_current(settings: Settings, read_model: ReadModel, partition: int) -> bool:
    """Wait until the read model has what is committed in the partition by now; False: not in time."""
    return await _current(read_model, partition, await _committed_end(settings, partition))


async def unread(settings: Settings) -> list[int]:
    """Partitions of which the read model lacks what is committed by now, though it was waited for: who asks it for all
    that somebody said would not be told of what was said last."""
    read_model = ReadModel(settings.postgres, sessions=1)
    try:
        async with live_history(settings) as history:
            ends = {number: (await history.bounds(number)).end for number in range(history.partitions)}
            deadline = time.monotonic() + CURRENT_WITHIN_S
            while True:
                positions = await read_model.positions()
                at = {number: positions[number].journal_offset if number in positions else 0 for number in ends}
                behind = [number for number, end in ends.items() if at[number] < end - 1]
                if not behind or time.monotonic() > deadline:
                    break
                await asyncio.sleep(POLL_S)
            return [number for number in behind if await _has_records(history, number, at[number], ends[number])]
    finally:
        await read_model.close()


async def _has_records(history: History, partition: int, start: int, end: int) -> bool:
    """Whether anything is committed there: of what was aborted, offsets are all that is left."""
    chunks = history.read(partition, start, end)
    try:
        async for _ in chunks:
            return True
    except Missing:
        return True
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]  # a generator
    return False


async def _committed_end(settings: Settings, partition: int) -> int:
    reader = consumer(settings.kafka, REQUEST_LIMIT_S)
    name = TopicPartition(Topics(settings.namespace).conversations, partition)
    await reader.start()
    try:
        return (await bounds(reader, [name], REQUEST_LIMIT_S))[name].end
    finally:
        await reader.stop()


async def _writer_epoch(settings: Settings, partition: int) -> int:
    database = Database(settings.postgres)
    try:
        lease = await database.row("epoch_of", partition=partition)
        return 0 if lease is None else int(lease["writer_epoch"])
    finally:
        await database.close()


async def _current(read_model: ReadModel, partition: int, end: int) -> bool:
    """Wait until the read model has read the partition up to `end`; False: not in time."""
    deadline = time.monotonic() + CURRENT_WITHIN_S
    # The last offset below the end is the marker that ends a transaction; no reader is given it.
    while (await read_model.position(partition)).journal_offset < end - 1:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def _from_read_model(
    read_model: ReadModel, conversation: str, partition: int, epoch: int
) -> dict[str, Any] | None:
    while True:
        before = await read_model.position(partition)
        found = await read_model.conversation(conversation)
        owners = await read_model.owners(conversation)
        runs = await read_model.runs(conversation, open_only=True)
        handed_over = await read_model.is_handed_over(conversation)
        if before == await read_model.position(partition):  # nothing moved between the questions
            break
    if found is None:
        return None
    return {
        "conversation": conversation,
        "head_seq": found.head_seq,
        "partition": partition,
        "writer_epoch": epoch,
        "owners": dict(owners),
        "open_runs": [{name: getattr(run, name) for name in RUN_FIELDS} for run in runs],
        "status": found.status,
        "handed_over": handed_over,
        "as_of_lsn": before.lsn,
    }


async def _from_journal(settings: Settings, name: str, partition: int, epoch: int) -> dict[str, Any] | None:
    state = Partition(partition)
    async for entry in entries_of(settings, partition, follow=False):
        evolve(state, entry)
    conversation = state.conversations.get(name)
    if conversation is None:
        return None
    runs = [
        {
            "run_id": run.id,
            "turn_seq": run.turn_seq,
            "group": run.group,
            "member": run.member,
            "run_epoch": run.epoch,
        }
        for run in conversation.runs.values()
    ]
    return {
        "conversation": name,
        "head_seq": conversation.head,
        "partition": partition,
        "writer_epoch": epoch,
        "owners": dict(conversation.owners),
        "open_runs": runs,
        "status": "open" if conversation.open else "closed",
        "handed_over": conversation.handed_over,
        "as_of_lsn": state.lsn,
    }
