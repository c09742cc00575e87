"""`turnlog demo` as a person starts it, in a pipe."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ops.demo.dialogues import SAMPLE, read_dialogues
from tests.support.processes import open_handles, wait_ended

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "dialogues.jsonl"
DIALOGUES = REAL if REAL.exists() else SAMPLE
COUNT = 6
WITHIN_S = 240
"""Starting servers and seven processes, on a machine that is busy with other tests."""


async def started(*options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ops.cli", "demo", *options), stdout=asyncio.subprocess.PIPE
    )


async def lines_of(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        yield line.decode().rstrip()


async def test_every_turn_of_real_dialogues_is_answered_once_though_an_agent_is_killed() -> None:
    process = await started("--dialogues", str(DIALOGUES), "--count", str(COUNT))
    async with asyncio.timeout(WITHIN_S):
        told = [line async for line in lines_of(process)]
        code = await process.wait()
    story = "\n".join(told)
    turns = sum(len(dialogue.exchanges) for dialogue in read_dialogues(DIALOGUES, COUNT))
    assert code == 0, story
    assert len(re.findall(r"^ *[\d.]+  answer ", story, re.MULTILINE)) == turns
    killed = re.search(r"kill -9 \d+: (agent [AB]) dies in the middle of (.+)", story)
    assert killed is not None
    who, where = killed.groups()
    other = {"agent A": "agent B", "agent B": "agent A"}[who]
    assert f"{where} moved from {who} to {other}, run epoch 2" in story
    assert re.search(rf"ok +{turns} of {turns} turns answered", story)
    assert re.search(r"ok +audit: .* 0 violations", story)
    assert "NOT OK" not in story


async def test_sigterm_ends_it_and_all_that_it_started() -> None:
    process = await started()
    pids: list[int] = []
    async with asyncio.timeout(WITHIN_S):
        async for line in lines_of(process):
            if found := re.search(r"agent [AB] is process (\d+)", line):
                pids.append(int(found[1]))
            if len(pids) == 2:
                break
        handles = open_handles(pids)
        process.send_signal(signal.SIGTERM)
        rest = [line async for line in lines_of(process)]
        assert await process.wait() == 130, rest
    assert wait_ended(handles, 5)


@pytest.mark.parametrize("content", ["", "{"])
async def test_a_file_that_holds_no_dialogues_is_a_usage_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(content)
    process = await started("--dialogues", str(path))
    assert await process.wait() == 64
