"""A small disk of its own for the servers' data, which can be filled: a tmpfs, where this process may mount one.

It lies in memory, so it must not outlive a process that is killed: a shell waits for the end of that one's pipe.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Final

SIZE_MB: Final = 1024
"""Kafka and PostgreSQL use some 200 MB in a run of ten minutes."""
BALLAST: Final = "ballast"
OUTLIVED: Final = 'cat; if command -v mountpoint >/dev/null && mountpoint -q "$1"; then umount --lazy "$1"; fi'
"""Of the shell: `cat` ends when the process at the other end of its pipe does, in whatever way."""
MEGABYTE, PAGE = 1 << 20, 1 << 12


class SmallDisk:
    """Mounted on a folder. Use it with `mounted`."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / BALLAST

    def fill(self) -> None:
        """Leave nothing free, for anybody."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (MEGABYTE, PAGE):
                while _written(file, bytes(size)):
                    pass

    def free(self) -> None:
        """As before."""
        self._ballast.unlink(missing_ok=True)


def _written(file: IO[bytes], data: bytes) -> bool:
    """Whether there was room."""
    try:
        return file.write(data) == len(data)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return False
        raise


@asynccontextmanager
async def mounted(folder: Path) -> AsyncIterator[SmallDisk | None]:
    """A small disk on the new folder `folder` for as long as the block runs; None where that needs rights that this
    process does not have. What it held stays in the folder."""
    guard = await asyncio.to_thread(_guard, folder)
    try:
        if not await asyncio.to_thread(_mount, folder):
            yield None
            return
        try:
            yield SmallDisk(folder)
        finally:
            await asyncio.to_thread(_move_off, folder)
    finally:
        await asyncio.to_thread(guard.communicate)


def _guard(folder: Path) -> subprocess.Popen[bytes]:
    """Takes the disk off when this process is gone, if it is there then."""
    return subprocess.Popen(
        ["sh", "-c", OUTLIVED, "sh", str(folder)], stdin=subprocess.PIPE, cwd="/", start_new_session=True
    )


def _mount(folder: Path) -> bool:
    folder.mkdir(parents=True)
    if shutil.which("mount") is None:
        return False
    options = f"size={SIZE_MB}m,mode=0755"
    command = ["mount", "-t", "tmpfs", "-o", options, "turnlog-chaos", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _move_off(folder: Path) -> None:
    kept = folder.with_name(f"{folder.name}.kept")
    # Kafka's index files are mostly holes, which Python's copy would fill.
    subprocess.run(["cp", "--archive", "--sparse=always", str(folder), str(kept)], check=True)
    # Whoever is still on it, since the run was broken off, keeps what it has; nobody else finds it any more.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()
    kept.rename(folder)
