"""The audit of a whole deployment, live or from an archive: its partitions, in this process or shared by several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.audit.asked import LIVE, Asked, Notify, Scope, Where, partitions_of, verdict
from ops.audit.shared import Team, begin, worth
from ops.audit.single import audit_partition
from ops.audit.violations import Verdict
from ops.history import open_history
from streams.settings import Settings

__all__ = ["LIVE", "Scope", "Where", "verify_cluster"]


async def verify_cluster(
    settings: Settings | None,
    scope: Scope,
    notify: Notify,
    where: Where = LIVE,
    *,
    processes: int = 1,
    beside: Mapping[str, Any] | None = None,
) -> Verdict:
    """Check invariants 1 to 7 and 9 to 12 up to what was committed when each partition's turn came.

    `settings` None: for an archive alone. `notify` gets a line of progress a second. `processes`: at most so many share
    the partitions, where there is enough to read; such an audit can go on after an interruption (`shared.resume`), and
    keeps `beside`, JSON of its caller's, for when it does (`Kept.plan`).
    Raises `CouldNotVerify` when the answer is neither yes nor no, `Interrupted`, and what the clients of Kafka and
    Postgres raise.
    """
    asked = Asked(settings, scope, where)
    async with open_history(settings, where.archive, offline=where.offline) as history:
        partitions = partitions_of(scope, history.partitions)
        if not await worth(history, partitions):
            results = [await audit_partition(history, asked, partition, notify) for partition in partitions]
            return verdict(scope, results, notify)
        identity = history.identity
    return await begin(asked, identity, partitions, Team(processes, notify), beside)
