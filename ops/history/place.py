"""Where archives and digests lie: a folder, or any address that fsspec knows (`s3://…`, `memory://…`).

Two promises are all that the writers of this package build on. `create` puts a whole object there, or leaves the one
that is there: of two writers of one name exactly one is told True, and after a crash there is all of it or nothing.
`put` puts a whole file under a name that nobody else uses. What either returned from outlives a crash of the machine.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from ops.history.port import HistoryUnavailable

STALE_AFTER_S: Final = 24 * 60 * 60
"""What a writer that was killed left half written is removed by the next one after a day: nobody writes for so long."""
PARTIAL: Final = ".partial"
WAY_OUT: Final = "install it with `pip install 'turnlog[data]'`"


class PlaceUnavailable(HistoryUnavailable):
    """A place that cannot be read or written now: away, full, or closed to us."""


@contextmanager
def _at(address: str) -> Iterator[None]:
    """What a store fails with becomes `PlaceUnavailable`; each kind that fsspec knows has errors of its own."""
    try:
        yield
    except HistoryUnavailable:
        raise
    except Exception as error:
        raise PlaceUnavailable(f"{address}: {type(error).__name__}: {error}") from error


def inside(name: str) -> str:
    """The name, which leads out of no place. Names are also read out of manifests, which others may have written.

    Raises `HistoryUnavailable`.
    """
    if not name or any(part in {"", ".", ".."} for part in name.split("/")):
        raise HistoryUnavailable(f"{name!r} is the name of nothing that can lie in an archive, an export or digests")
    return name


class Place(Protocol):
    """Objects by name; a name's parts are separated by `/`. All calls block, and raise `HistoryUnavailable` for a name
    that leads out of it."""

    @property
    def address(self) -> str:
        """For people, without credentials."""

    def names(self, under: str) -> list[str]:
        """Names of all objects whose names begin with `under/`, sorted; of all there are for an empty one."""

    def read(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """What these objects hold. Raises `HistoryUnavailable` for one that is not there."""

    def create(self, name: str, content: bytes) -> bool:
        """Put a new object there, as a whole; False: there is one of this name, and it stays as it is."""

    def put(self, name: str, file: Path) -> None:
        """Put a copy of `file` there, as a whole, under a name that nobody else writes; in place of what is there."""

    def remove(self, name: str) -> None:
        """Remove an object; nothing when it is not there."""

    def size(self, name: str) -> int | None:
        """Bytes of an object; None: it is not there."""

    def sizes(self, names: Sequence[str]) -> Mapping[str, int]:
        """Bytes of those of these objects that are there."""

    def fetched(self, name: str) -> Any:
        """A context in which the object is a file on this machine: its `Path`."""


class Folder:
    """A `Place` on a local disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def address(self) -> str:
        return str(self._root)

    def names(self, under: str) -> list[str]:
        """See `Place`."""
        with _at(self.address):
            top = self._path(under) if under else self._root
            found = (path for path in top.rglob("*") if path.is_file() and not path.name.endswith(PARTIAL))
            return sorted(path.relative_to(self._root).as_posix() for path in found)

    def read(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """See `Place`."""
        try:
            return {name: self._path(name).read_bytes() for name in names}
        except OSError as error:
            raise HistoryUnavailable(f"{error.filename} cannot be read: {error.strerror}") from error

    def create(self, name: str, content: bytes) -> bool:
        """See `Place`. A hard link is what puts a whole file under a name only if nobody has it."""
        with _at(self.address):
            target = self._path(name)
            partial = self._partial(target)
            try:
                with partial.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(partial, target)
            except FileExistsError:
                return False
            finally:
                partial.unlink(missing_ok=True)
            _sync_folders(target.parent, self._root)
            return True

    def put(self, name: str, file: Path) -> None:
        """See `Place`."""
        with _at(self.address):
            target = self._path(name)
            partial = self._partial(target)
            try:
                with file.open("rb") as source, partial.open("xb") as copy:
                    while block := source.read(1 << 20):
                        copy.write(block)
                    copy.flush()
                    os.fsync(copy.fileno())
                partial.rename(target)
            finally:
                partial.unlink(missing_ok=True)
            _sync_folders(target.parent, self._root)

    def remove(self, name: str) -> None:
        """See `Place`."""
        with _at(self.address):
            self._path(name).unlink(missing_ok=True)

    def size(self, name: str) -> int | None:
        """See `Place`."""
        with _at(self.address):
            path = self._path(name)
            return path.stat().st_size if path.is_file() else None

    def sizes(self, names: Sequence[str]) -> Mapping[str, int]:
        """See `Place`."""
        return {name: size for name in names if (size := self.size(name)) is not None}

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """See `Place`."""
        path = self._path(name)
        if not path.is_file():
            raise HistoryUnavailable(f"{path} is not there")
        yield path

    def remove_stale(self) -> None:
        """Remove what writers that are long gone left half written. Those at work finish theirs meanwhile."""
        before = time.time() - STALE_AFTER_S
        with _at(self.address):
            for path in self._root.rglob(f"*{PARTIAL}"):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()

    def _path(self, name: str) -> Path:
        return self._root / inside(name)

    def _partial(self, target: Path) -> Path:
        if not self._root.is_dir():
            self._root.mkdir(parents=True, exist_ok=True)
            _sync(self._root.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.with_name(f"{target.name}.{uuid.uuid4().hex}{PARTIAL}")


class Remote:
    """A `Place` that fsspec knows. `create` rests on its conditional put, which is tried before the first one."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # noqa: PLC0415 -- of the extra `data`; a folder needs none of it
        except ImportError as error:
            raise HistoryUnavailable(f"{url} needs fsspec: {WAY_OUT}") from error
        try:
            self._fs, self._base = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise HistoryUnavailable(f"{url} cannot be opened: {error}") from error
        self._base = self._base.rstrip("/")
        self._tried = False

    @property
    def address(self) -> str:
        protocol = self._fs.protocol
        return f"{protocol if isinstance(protocol, str) else protocol[0]}://{self._base.lstrip('/')}"

    def names(self, under: str) -> list[str]:
        """See `Place`."""
        with _at(self.address):
            self._fs.invalidate_cache()
            start = self._fs._strip_protocol(self._base) + "/"
            found = self._fs.find(self._path(under) if under else self._base)
            return sorted(str(path)[len(start) :] for path in found)

    def read(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """See `Place`. All at once."""
        with _at(self.address):
            if not names:
                return {}
            try:
                found = self._fs.cat([self._path(name) for name in names])
            except FileNotFoundError as error:
                raise HistoryUnavailable(f"{error} is not there") from error
            stripped = {self._fs._strip_protocol(path): content for path, content in found.items()}
            return {name: stripped[self._fs._strip_protocol(self._path(name))] for name in names}

    def create(self, name: str, content: bytes) -> bool:
        """See `Place`."""
        if not self._tried:
            probe = f"probe/{uuid.uuid4().hex}"
            both = [self._created(probe, b""), self._created(probe, b"")]
            self.remove(probe)
            if both != [True, False]:
                raise HistoryUnavailable(
                    f"{self.address} does not refuse to write over an object that is there (a conditional put): two "
                    "writers could not be kept apart. Use a folder, or S3 with If-None-Match"
                )
            self._tried = True
        return self._created(name, content)

    def _created(self, name: str, content: bytes) -> bool:
        with _at(self.address):
            try:
                self._fs.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                return False
            return True

    def put(self, name: str, file: Path) -> None:
        """See `Place`."""
        with _at(self.address):
            self._fs.put_file(str(file), self._path(name))

    def remove(self, name: str) -> None:
        """See `Place`."""
        with _at(self.address):
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                return

    def size(self, name: str) -> int | None:
        """See `Place`."""
        with _at(self.address):
            try:
                return int(self._fs.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def sizes(self, names: Sequence[str]) -> Mapping[str, int]:
        """See `Place`. One listing of each folder that the names are in."""
        with _at(self.address):
            self._fs.invalidate_cache()
            start = len(self._fs._strip_protocol(self._base)) + 1
            found = {
                str(path)[start:]: int(about["size"])
                for folder in {name.rsplit("/", 1)[0] for name in names}
                for path, about in self._fs.find(self._path(folder), detail=True).items()
            }
            return {name: found[name] for name in names if name in found}

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """See `Place`."""
        with TemporaryDirectory(prefix="turnlog-") as folder:
            path = Path(folder, name.rsplit("/", 1)[-1])
            with _at(self.address):
                try:
                    self._fs.get_file(self._path(name), str(path))
                except FileNotFoundError as error:
                    raise HistoryUnavailable(f"{self.address}/{name} is not there") from error
            yield path

    def _path(self, name: str) -> str:
        return f"{self._base}/{inside(name)}"


def create_once(place: Place, name: str, content: bytes) -> bool:
    """`create` by one of several writers, whose contents differ; False: another's is there.

    A put that was answered too late is tried again by the store's client, and then finds its own object.
    """
    return place.create(name, content) or place.read([name])[name] == content


def place_at(address: str) -> Place:
    """The place that `address` names: a path or `file://…` is a folder, anything else is fsspec's."""
    if "://" not in address:
        return Folder(Path(address).expanduser().absolute())
    if address.startswith("file://"):
        return Folder(Path(address.removeprefix("file://")).absolute())
    return Remote(address)


def _sync_folders(folder: Path, root: Path) -> None:
    """Make the names in `folder`, and in those above it up to `root`, outlive a crash of the machine."""
    for each in (folder, *folder.parents):
        _sync(each)
        if each == root:
            break


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
