"""The whole rebuild, in order: read beside, then replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ops.history import History
from ops.rebuild.beside import TABLES, Behind, Beside, CannotRebuild, Group, held_by
from ops.rebuild.fill import fill_checkpoint, fill_read_model

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rebuild would do, or did."""

    groups: Sequence[Group]
    partitions: int
    offsets: int
    """Of the journal, over all partitions."""
    goes_on: bool
    """There is an interrupted one that it goes on with."""
    rows: dict[str, int]
    """Of the tables in use."""
    writers: dict[int, str]

    def document(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "tables": self.rows,
            "partitions": self.partitions,
            "journal_offsets": self.offsets,
            "goes_on": self.goes_on,
            "workers": sorted(set(self.writers.values())),
        }


async def planned(history: History, beside: Beside, groups: Sequence[Group]) -> Plan:
    """Look, and change nothing. `CannotRebuild`: the journal is not the database's, or not whole."""
    await beside.require_journal(history.identity)
    offsets = 0
    for partition in range(history.partitions):
        for gone in await history.missing(partition):
            raise CannotRebuild(
                f"offsets {gone} of partition {partition} of the journal are missing: read an archive of them first, "
                "with --archive"
            )
        offsets += len(await history.bounds(partition))
    tables = [table for group in groups for table in TABLES[group]]
    writers = await beside.writers() if Group.CHECKPOINTS in groups else {}
    goes_on = await beside.goes_on(history.identity)
    return Plan(groups, history.partitions, offsets, goes_on, await beside.counts(tables), writers)


async def rebuild(history: History, beside: Beside, plan: Plan, notify: Notify) -> dict[str, Any]:
    """Do it. Interrupted anywhere, the same again goes on; the tables in use are the old ones or the new ones.

    `CannotRebuild`: workers write what is to be replaced, or another rebuild is at work.
    """
    if plan.writers:
        raise CannotRebuild(held_by(plan.writers))
    await beside.take()
    if not await beside.goes_on(history.identity):
        await beside.begin(history.identity)
    events = 0
    if Group.READ_MODEL in plan.groups:
        events += await _read_model(history, beside, notify)
        notify("the read model is replaced")
    if Group.CHECKPOINTS in plan.groups:
        for partition in range(plan.partitions):
            events += await fill_checkpoint(history, beside.dsn, partition, notify)
        await beside.replace_checkpoints()
        notify("checkpoints are replaced")
    rows = await beside.counts(list(plan.rows))
    await beside.drop()
    return {"tables": {table: {"before": plan.rows[table], "after": rows[table]} for table in rows}, "events": events}


async def _read_model(history: History, beside: Beside, notify: Notify) -> int:
    events = 0
    while True:
        read = 0
        for partition in range(history.partitions):
            read += await fill_read_model(history, beside.dsn, partition, notify)
        events += read
        try:
            await beside.replace_read_model()
        except Behind as behind:  # a projector wrote what was committed since
            if not read:
                raise CannotRebuild(f"{behind}: it is not of this journal; `turnlog doctor` tells more") from behind
        else:
            return events
