"""An audit that was interrupted goes on where it was: what its checkers remember, in a folder of its own.

A folder holds `plan.json` (of which journal, what was asked for, by which release), and of each partition
`NNNNN.json` once it is through, or `NNNNN/` with the state after the last chunk that was seen. Each is written beside
its place and moved there, so that a kill in between leaves the one before.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import shutil
import sqlite3
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from ops.audit.remembered import scratch
from ops.folders import cache_folder

STATE: Final = "state"
OURS: Final = ("ops.audit.", "streams.core.", "streams.fence.port", "msgspec.")
PLAIN: Final = frozenset({("collections", "deque"), ("collections", "OrderedDict"), ("collections", "Counter")})


class CannotResume(Exception):
    """What was kept is not there, or is not of this audit; the message says which."""


def audits() -> Path:
    """Where this user's interrupted audits are."""
    return cache_folder("audits")


class Kept:
    """One audit's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def begun(cls, plan: Mapping[str, Any]) -> Kept:
        """A new one, for an audit of this plan."""
        kept = cls(audits() / secrets.token_hex(4))
        kept.folder.mkdir(mode=0o700)
        _replace(kept.folder / "plan.json", json.dumps({**plan, "release": version("turnlog")}).encode())
        return kept

    @classmethod
    def named(cls, name: str) -> Kept:
        """That of an interrupted audit, by its name or its folder. `CannotResume`: there is none, or it is not ours."""
        folder = Path(name) if os.sep in name else audits() / name
        if not (folder / "plan.json").is_file():
            raise CannotResume(f"there is no interrupted audit in {folder}")
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise CannotResume(f"{folder} belongs to somebody else, or may be written by others: it is not read")
        return cls(folder)

    @property
    def name(self) -> str:
        """By which it is resumed."""
        return self.folder.name if self.folder.parent == audits() else str(self.folder)

    def plan(self) -> dict[str, Any]:
        """What it began with. `CannotResume`: by another release."""
        plan: dict[str, Any] = json.loads((self.folder / "plan.json").read_bytes())
        if plan["release"] != version("turnlog"):
            raise CannotResume(
                f"it was begun by release {plan['release']}, this one is {version('turnlog')}: start anew"
            )
        return plan

    def save(self, partition: int, state: object) -> None:
        """Keep the state of a partition's audit in place of an earlier one."""
        place = self.folder / f"{partition:05}"
        made = self.folder / f"{partition:05}.{secrets.token_hex(4)}.new"
        made.mkdir(mode=0o700)
        with (made / STATE).open("wb") as file:
            _Pickler(file, made).dump(state)
        old = self.folder / f"{partition:05}.old"
        shutil.rmtree(old, ignore_errors=True)
        if place.exists():
            place.rename(old)
        made.rename(place)
        shutil.rmtree(old, ignore_errors=True)

    def load(self, partition: int) -> Any | None:
        """The state that was kept last; None: there is none, and it begins at the beginning."""
        for name in (f"{partition:05}", f"{partition:05}.old"):
            place = self.folder / name
            if (place / STATE).is_file():
                with (place / STATE).open("rb") as file:
                    return _Unpickler(file, place).load()
        return None

    def finish(self, partition: int, result: Mapping[str, Any]) -> None:
        """The partition is through, with this result."""
        _replace(self.folder / f"{partition:05}.json", json.dumps(result).encode())
        for leftover in self.folder.glob(f"{partition:05}*"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)

    def finished(self, partition: int) -> dict[str, Any] | None:
        """The result of a partition that is through."""
        path = self.folder / f"{partition:05}.json"
        result: dict[str, Any] | None = json.loads(path.read_bytes()) if path.is_file() else None
        return result

    def remove(self) -> None:
        """It is not needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".new")
    partial.write_bytes(content)
    partial.replace(path)


class _Pickler(pickle.Pickler):
    """Databases go to files of their own, a page at a time: they may be larger than memory."""

    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._folder = folder
        self._count = 0

    def persistent_id(self, obj: Any) -> str | None:
        if not isinstance(obj, sqlite3.Connection):
            return None
        self._count += 1
        name = f"{self._count}.db"
        with sqlite3.connect(self._folder / name) as copy:
            obj.backup(copy)
        copy.close()
        return name


class _Unpickler(pickle.Unpickler):
    """Makes nothing but our own objects and plain collections."""

    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def persistent_load(self, pid: Any) -> sqlite3.Connection:
        rows = scratch()
        stored = sqlite3.connect(self._folder / Path(str(pid)).name)
        stored.backup(rows)
        stored.close()
        return rows

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PLAIN and not f"{module}.".startswith(OURS):
            raise CannotResume(f"what was kept names {module}.{name}, which no audit keeps")
        found = super().find_class(module, name)
        # A dotted name, or what one of our modules imports, would be somebody else's.
        if (module, name) not in PLAIN and not f"{getattr(found, '__module__', '')}.".startswith(OURS):
            raise CannotResume(f"what was kept names {module}.{name}, which no audit keeps")
        return found
