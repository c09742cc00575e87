"""The data folder of an embedded stack: who uses it, and what it must remember between two starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import msgspec

from ops.embedded.errors import FolderUnusable, GivenUp
from ops.embedded.kafka import new_cluster_id
from ops.embedded.postgres import MAJOR

LAYOUT = 1
TEMPORARY_PREFIX = "turnlog-stack-"
LOCK_POLL_S = 0.05
Progress = Callable[[str], None]
STALE_S = 60.0  # a temporary folder this old whose lock is free belongs to nobody


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What `stack.json` keeps: the layout's number, Kafka's cluster id, and the ports of the last start."""

    layout: int = LAYOUT
    postgres_major: int = MAJOR
    cluster_id: str
    kafka_port: int = 0
    controller_port: int = 0
    postgres_port: int = 0


class DataFolder:
    """A folder that this process has locked for one stack; the lock is passed on to the supervisor."""

    def __init__(self, path: Path, *, temporary: bool, lock_wait_s: float, progress: Progress, given_up: Event) -> None:
        self.path = path
        self.temporary = temporary
        self.lock = _lock(path, lock_wait_s, progress, given_up)
        try:
            self.remembered = self._read()
        except BaseException:
            self.release()
            raise

    @classmethod
    def open(
        cls, data: Path | None, *, lock_wait_s: float, progress: Progress, given_up: Event | None = None
    ) -> DataFolder:
        """Lock `data` (made when missing), or a new temporary folder when it is None. `progress` is told of a wait.

        Raises `FolderUnusable` when another stack runs on the folder, or when it is not a folder of this layout, and
        `GivenUp` when `given_up` was set during the wait.
        """
        given_up = given_up or Event()
        if data is None:
            _sweep()
            path = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
            return cls(path, temporary=True, lock_wait_s=lock_wait_s, progress=progress, given_up=given_up)
        path = data.expanduser().absolute()
        if any(sign in str(path) for sign in ",\n"):
            raise FolderUnusable(f"the data folder {str(path)!r} must have no comma and no line break in its path")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderUnusable(f"the data folder {path} cannot be made: {error.strerror}; choose another") from error
        return cls(path, temporary=False, lock_wait_s=lock_wait_s, progress=progress, given_up=given_up)

    def remember(self, remembered: Remembered) -> None:
        """Keep `remembered` for the next start; a kill in the middle leaves the old one."""
        partial = self.path / "stack.json.new"
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(remembered)))
        partial.replace(self.path / "stack.json")
        self.remembered = remembered

    def home(self, server: str) -> Path:
        """The folder of one server's own data, made when missing; what describes it stands beside it."""
        home = self.path / server / "data"
        home.mkdir(parents=True, exist_ok=True)
        home.parent.chmod(0o700)
        home.chmod(0o700)
        return home

    def log(self, server: str) -> Path:
        """Where a server's output goes."""
        logs = self.path / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{server}.log"

    def release(self) -> None:
        """Let go of the lock; whoever inherited its descriptor holds it on."""
        os.close(self.lock)

    def discard(self) -> None:
        """Remove a temporary folder that no supervisor took over."""
        if self.temporary and self.path.exists():
            shutil.rmtree(self.path)

    def _read(self) -> Remembered:
        try:
            remembered = msgspec.json.decode((self.path / "stack.json").read_bytes(), type=Remembered)
        except FileNotFoundError:
            for server in ("kafka", "postgres"):
                if (self.path / server).exists():
                    raise FolderUnusable(
                        f"{self.path / server} is there, but no stack.json of Turnlog's: choose another data folder"
                    ) from None
            return Remembered(cluster_id=new_cluster_id())
        except msgspec.DecodeError as error:
            raise FolderUnusable(f"{self.path / 'stack.json'} is damaged: {error}") from error
        if (remembered.layout, remembered.postgres_major) != (LAYOUT, MAJOR):
            raise FolderUnusable(
                f"{self.path} was made by layout {remembered.layout} with PostgreSQL {remembered.postgres_major}; this "
                f"version needs layout {LAYOUT} with PostgreSQL {MAJOR}: choose another data folder"
            )
        return remembered


def _lock(path: Path, wait_s: float, progress: Progress, given_up: Event) -> int:
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise FolderUnusable(
            f"the data folder {path} cannot be used: {path / 'lock'}: {error.strerror}; choose a folder that you can "
            "write to"
        ) from error
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                os.close(descriptor)
                raise FolderUnusable(
                    f"another stack runs on {path} (process {holder or 'unknown'}): stop it or choose another folder"
                ) from None
            if not told:
                progress(f"another stack runs on {path}: waiting up to {wait_s:.0f} s, in case it is being stopped")
                told = True
            if given_up.wait(LOCK_POLL_S):
                os.close(descriptor)
                raise GivenUp from None
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder for as long as the block runs, locked: should this process be killed, `left_behind` finds it."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    lock = _lock(path, 0.0, lambda _line: None, Event())
    try:
        yield path
    finally:
        shutil.rmtree(path)
        os.close(lock)


def left_behind(prefix: str) -> Iterator[Path]:
    """Temporary folders of that prefix whose processes were killed; each is locked until the next one is asked for."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        lock = folder / "lock"
        # Other users' folders, and those that another start removes at this moment, are none of ours.
        with contextlib.suppress(FileNotFoundError, PermissionError, BlockingIOError):
            if time.time() - lock.stat().st_mtime < STALE_S:
                continue
            with lock.open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock.stat()  # whoever held it a moment ago may have removed it
                yield folder


def _sweep() -> None:
    """Remove temporary folders whose supervisor was killed before it could."""
    for folder in left_behind(TEMPORARY_PREFIX):
        shutil.rmtree(folder)
