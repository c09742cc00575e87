"""An audit that several processes share, a partition each at a time, and that goes on after an interruption."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ops.audit.asked import Asked, Audited, Notify, Scope, Where, partitions_of, verdict
from ops.audit.kept import CannotResume, Kept
from ops.audit.source import CouldNotVerify
from ops.audit.violations import Verdict
from ops.children import environment_of
from ops.history import History, open_history
from streams.settings import Settings

WORTH_EVENTS: Final = 100_000
"""A process takes a second to start: with less to read, one is faster, and begins anew as fast as it would go on."""
PAUSE_WITHIN_S: Final = 60.0
"""How long the processes may take to keep what they know, once they are told to stop."""


class Interrupted(Exception):
    """It was stopped, and can go on: the message is the command."""


@dataclass(slots=True)
class Usage:
    """What its processes used, for whoever measures."""

    cpu_s: dict[int, float] = field(default_factory=dict)
    rss_bytes: int = 0

    def note(self, said: Mapping[str, Any]) -> None:
        """What a process says at the end of a partition."""
        self.cpu_s[said["pid"]] = said["cpu_s"]
        self.rss_bytes = max(self.rss_bytes, said["rss_bytes"])


@dataclass(frozen=True, slots=True)
class Team:
    """How many processes share it at most, where progress is told, and what they used."""

    processes: int
    notify: Notify
    usage: Usage = field(default_factory=Usage)


async def worth(history: History, partitions: Sequence[int]) -> bool:
    """Whether there is so much to read that processes of their own pay."""
    bounds = [await history.bounds(partition) for partition in partitions]
    return sum(len(each) for each in bounds) >= WORTH_EVENTS


def asked_by(plan: Mapping[str, Any], settings: Settings | None) -> Asked:
    """What an audit's plan asks for."""
    return Asked(settings, Scope(**plan["scope"]), Where(**plan["where"]))


async def begin(
    asked: Asked, identity: str, partitions: Sequence[int], team: Team, beside: Mapping[str, Any] | None = None
) -> Verdict:
    """A new one, of the journal of this identity. Raises `Interrupted` when it is cancelled; see `verify_cluster`."""
    scope, where = asked.scope, asked.where
    plan = {
        "identity": identity,
        "scope": {"partition": scope.partition, "conversation": scope.conversation},
        "where": {"archive": where.archive, "offline": where.offline},
        "beside": dict(beside or {}),
    }
    return await _share(Kept.begun(plan), asked, partitions, team)


async def resume(settings: Settings | None, name: str, team: Team) -> Verdict:
    """Go on with an interrupted one. Raises `CannotResume` when there is none, or the journal is another one by now."""
    kept = Kept.named(name)
    asked = asked_by(kept.plan(), settings)
    async with open_history(settings, asked.where.archive, offline=asked.where.offline) as history:
        if history.identity != kept.plan()["identity"]:
            raise CannotResume(f"audit {name} was of the journal {kept.plan()['identity']}; this is {history.identity}")
        partitions = partitions_of(asked.scope, history.partitions)
    return await _share(kept, asked, partitions, team)


async def _share(kept: Kept, asked: Asked, partitions: Sequence[int], team: Team) -> Verdict:
    left = [partition for partition in partitions if kept.finished(partition) is None]
    at_once = min(team.processes, len(left))
    command = f"turnlog audit verify --resume {kept.name}"
    team.notify(f"{len(left)} of {len(partitions)} partitions to audit, {at_once} at a time; stopped, go on with:")
    team.notify(command)
    waiting = iter(left)
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(_drive(kept, asked.settings, waiting, team))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    except asyncio.CancelledError:
        raise Interrupted(command) from None
    results = [Audited.of(kept.finished(partition) or {}) for partition in partitions]
    answer = verdict(asked.scope, results, team.notify)
    kept.remove()
    return answer


async def _drive(kept: Kept, settings: Settings | None, waiting: Iterator[int], team: Team) -> None:
    """One process, as long as there are partitions."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ops.audit.worker",
        str(kept.folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **({} if settings is None else environment_of(settings))},
        limit=1 << 24,
    )
    assert child.stdin is not None and child.stdout is not None  # noqa: S101, PT018 -- pipes
    try:
        for partition in waiting:
            child.stdin.write(f"{partition}\n".encode())
            await _until_through(child.stdout, partition, team)
    finally:
        child.stdin.close()
        try:
            await asyncio.wait_for(asyncio.shield(child.wait()), PAUSE_WITHIN_S)
        except TimeoutError:
            child.kill()
            await child.wait()


async def _until_through(lines: asyncio.StreamReader, partition: int, team: Team) -> None:
    while line := await lines.readline():
        said = json.loads(line)
        if "note" in said:
            team.notify(said["note"])
        elif "error" in said:
            raise CouldNotVerify(said["error"])
        else:
            team.usage.note(said)
            return
    raise CouldNotVerify(f"the process that audited partition {partition} ended before it was through")
