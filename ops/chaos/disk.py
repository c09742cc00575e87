"""A small disk of its own for the servers' data, which can be filled: a tmpfs, where this process may mount one."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

SIZE_MB: Final = 1024
"""Kafka and PostgreSQL use some 200 MB in a run of ten minutes."""
BALLAST: Final = "ballast"


class SmallDisk:
    """Mounted on a folder. Use it with `mounted`."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / BALLAST

    def fill(self) -> None:
        """Leave nothing free, for anybody."""
        with self._ballast.open("wb") as file:
            free = os.statvfs(self._ballast).f_bavail * os.statvfs(self._ballast).f_frsize
            os.posix_fallocate(file.fileno(), 0, free)

    def free(self) -> None:
        """As before."""
        self._ballast.unlink(missing_ok=True)


@asynccontextmanager
async def mounted(folder: Path) -> AsyncIterator[SmallDisk | None]:
    """A small disk on the new folder `folder` for as long as the block runs; None where that needs rights that this
    process does not have. What it held stays in the folder."""
    if not await asyncio.to_thread(_mount, folder):
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        await asyncio.to_thread(_move_off, folder)


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
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()
    kept.rename(folder)
