"""The small disk, where this process may mount one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from ops.chaos.disk import mounted

pytestmark = pytest.mark.unit

HOLDS = """
import asyncio, sys
from pathlib import Path
from ops.chaos.disk import mounted

async def hold():
    async with mounted(Path(sys.argv[1])) as disk:
        print(disk is not None, flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


def is_there(folder: Path) -> bool:
    return folder.is_mount()


async def test_what_it_held_stays_when_it_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    async with mounted(folder):
        (folder / "kept").write_text("here")
    assert (folder / "kept").read_text() == "here"
    assert not is_there(folder)


async def test_it_does_not_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDS, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    could = await holder.stdout.readline()
    was = is_there(folder)
    holder.kill()
    await holder.stdout.read()  # the shell that waits for the end of the process has this pipe too
    await holder.wait()
    if could.strip() != b"True":
        pytest.skip("this process may mount nothing")
    assert was
    assert not is_there(folder)
