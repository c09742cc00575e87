"""A place has an object whole or not at all, the first one of its name, and says when it cannot be used."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ops.history.place import PARTIAL, Folder, Place, PlaceUnavailable, Remote, place_at
from ops.history.port import HistoryUnavailable


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place: a folder, and what fsspec knows."""
    return place_at(str(tmp_path / "place") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/place")


def test_the_first_of_a_name_stays(place: Place) -> None:
    assert place.create("a/b/c.json", b"first")
    assert not place.create("a/b/c.json", b"second")
    assert place.read(["a/b/c.json"]) == {"a/b/c.json": b"first"}


def test_what_is_there_is_listed_with_its_size(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert (place.names("a"), place.size("a/x"), place.sizes(["a/x"])) == ([], None, {})
    place.create("a/y/2", b"22")
    place.put("a/x/1", tmp_path / "file")
    place.create("ab", b"")
    assert place.names("a") == ["a/x/1", "a/y/2"]
    assert place.sizes(["a/x/1", "a/y/2", "a/z"]) == {"a/x/1": 5, "a/y/2": 2}
    with place.fetched("a/x/1") as path:
        assert path.read_bytes() == b"12345"
    place.remove("a/x/1")
    place.remove("a/x/1")
    assert place.names("a") == ["a/y/2"]
    with pytest.raises(HistoryUnavailable, match="a/x/1"):
        place.read(["a/x/1"])
    with pytest.raises(HistoryUnavailable, match="is not there"), place.fetched("a/x/1"):
        pass


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Folder(tmp_path / "place")
    place.create("there", b"1")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PlaceUnavailable, match="No space left"):
        place.create("new", b"2")
    with pytest.raises(PlaceUnavailable, match="No space left"):
        place.put("new", tmp_path / "place" / "there")
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["there"]


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PlaceUnavailable):
        place_at(str(tmp_path / "file")).create("a", b"")


def test_a_store_that_writes_over_what_is_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_at(f"memory://{uuid.uuid4().hex}")
    assert isinstance(place, Remote)
    memory = type(fsspec.filesystem("memory"))
    pipe = memory.pipe_file

    def over(self: Any, path: str, value: bytes, **_: Any) -> None:
        pipe(self, path, value)

    monkeypatch.setattr(memory, "pipe_file", over)
    with pytest.raises(HistoryUnavailable, match="does not refuse to write over"):
        place.create("a", b"1")
    assert place.names("") == []


def test_an_address_that_nobody_knows_is_refused() -> None:
    with pytest.raises(HistoryUnavailable, match="nosuch"):
        place_at("nosuch://x")


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/passwd", "a//b", "./a", "", "a/.."])
def test_no_name_leads_out_of_a_place(place: Place, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").write_bytes(b"somebody's")
    uses: list[Callable[[], Any]] = [
        lambda: place.create(name, b"x"),
        lambda: place.put(name, tmp_path / "out"),
        lambda: place.read([name]),
        lambda: place.remove(name),
        lambda: place.size(name),
        lambda: place.names(name or ".."),
        lambda: place.fetched(name).__enter__(),
    ]
    for use in uses:
        with pytest.raises(HistoryUnavailable, match="is the name of nothing"):
            use()
    assert (tmp_path / "out").read_bytes() == b"somebody's"


def test_what_another_writer_has_finished_meanwhile_is_not_stale(tmp_path: Path) -> None:
    (tmp_path / f"gone{PARTIAL}").symlink_to(tmp_path / "renamed")
    old = tmp_path / "a" / f"old{PARTIAL}"
    old.parent.mkdir()
    old.write_bytes(b"")
    os.utime(old, (0, 0))
    Folder(tmp_path).remove_stale()
    assert not old.exists()
