"""Decisions of an earlier release, kept: each command of some stories, and the entries that were decided for it.

`python -m tests.field_reports.golden > tests/field_reports/golden.jsonl` records them anew. Do so only where a rule was
meant to change: what the difference shows is what every deployment will decide otherwise from that release on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from streams.core import commands as command_module
from streams.core.commands import Command
from streams.core.events import Entry, Event
from streams.core.fold import step
from streams.core.state import Partition
from tests.support.command_sequences import seeded_commands
from tests.support.partition_world import GROUP, World

FILE = Path(__file__).with_name("golden.jsonl")
SEED, LENGTH = 56, 500
TOO_LONG = 2_000
"""Commands of so many characters are those that break a limit; the file is to stay small."""


class Decided(NamedTuple):
    """A command as it was recorded, and its entries as JSON has them."""

    story: str
    command: Command
    entries: list[Any]


class Recorder(World):
    """A world that keeps its commands."""

    def __init__(self, **agents: Any) -> None:
        self.commands: list[Command] = []
        super().__init__(**agents)

    def do(self, command: Command) -> list[Event]:
        self.commands.append(command)
        return super().do(command)


def double_text() -> Recorder:
    """A second and a third message while the first is being answered, and a tool's result that comes too late."""
    world = Recorder()
    world.join("m1", settle=True)
    world.open()
    world.say("one")
    world.run("m1", "started", run=f"c/1/{GROUP}")
    world.send("m1", "tool_call", run=f"c/1/{GROUP}", client_id="t1", data='{"tool":"search"}')
    world.say("two")
    world.say("three")
    world.send("m1", text="answer", run=f"c/1/{GROUP}", client_id="a1")
    world.run("m1", "finished", run=f"c/1/{GROUP}")
    world.send("m1", "tool_call", run=f"c/1/{GROUP}", client_id="t1.result", data='{"result":"late"}')
    return world


def takeover(on_owner_loss: str) -> Recorder:
    """The owner is lost in the middle of a stream."""
    world = Recorder(on_owner_loss=on_owner_loss)
    world.join("m1", settle=True, continues=True)
    world.open()
    world.say("count")
    world.run("m1", "started")
    world.chunk("m1", "s", data='{"type":"text","content":"one "}')
    world.join("m2", gateway="gw-2", settle=True, continues=True)
    world.leave("m1")
    world.chunk("m1", "s", data='{"type":"text","content":"never"}')
    world.run("m2", "started")
    world.chunk("m2", "s", data='{"type":"text","content":"two"}')
    world.chunk("m2", "s", done=True, data='{"type":"event","name":"stream_done"}')
    world.run("m2", "finished")
    return world


def cancelled() -> Recorder:
    """The conversation is closed while its turn is being answered, and opened again."""
    world = Recorder()
    world.join("m1", settle=True)
    world.open()
    world.say("book a flight")
    world.run("m1", "started")
    world.close()
    world.send("m1", text="booked")
    world.reopen()
    world.say("and a hotel")
    world.send("m1", text="which?")
    return world


def failed() -> Recorder:
    """An agent fails; a run times out."""
    world = Recorder(watchdog_ms=3000)
    world.join("m1", settle=True)
    world.open()
    world.say("divide by zero")
    world.run("m1", "started")
    world.send("m1", "error", data='{"message":"no"}')
    world.run("m1", "error")
    world.say("wait")
    world.run("m1", "started")
    world.pass_time(5000)
    return world


STORIES: dict[str, Callable[[], Recorder]] = {
    "double text": double_text,
    "takeover, restart": lambda: takeover("restart"),
    "takeover, continue": lambda: takeover("continue"),
    "takeover, fail": lambda: takeover("fail"),
    "cancelled": cancelled,
    "failed": failed,
}


def plain(entries: Sequence[Entry]) -> list[Any]:
    """Entries as JSON has them, each with its event's type."""
    told = [msgspec.to_builtins(entry) | {"type": type(entry.event).__name__} for entry in entries]
    return list(json.loads(json.dumps(told, sort_keys=True)))


def recorded() -> list[Decided]:
    """What the file holds."""
    found = []
    for line in FILE.read_text().splitlines():
        row = json.loads(line)
        kind = getattr(command_module, row["command"].pop("type"))
        found.append(Decided(row["story"], msgspec.convert(row["command"], kind), row["entries"]))
    return found


def _record() -> Iterator[str]:
    told = {name: story().commands for name, story in STORIES.items()}
    told["anything"] = [command for command in seeded_commands(SEED, LENGTH) if len(repr(command)) < TOO_LONG]
    for name, commands in told.items():
        state = Partition(0)
        for command in commands:
            entries = plain(step(state, command, 1))
            fields = msgspec.to_builtins(command) | {"type": type(command).__name__}
            yield json.dumps({"story": name, "command": fields, "entries": entries}, sort_keys=True)


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in _record())
