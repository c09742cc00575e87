"""Every statement has a name and a purpose, and stands by itself."""

from __future__ import annotations

import pytest

from streams.fence.queries import load_queries

FILES = [
    ("streams.fence", "queries.sql"),
    ("streams.fence", "channels.sql"),
    ("streams.fence", "topics.sql"),
    ("streams.projector", "queries.sql"),
    ("streams.projector", "read.sql"),
    ("streams.projector", "retention.sql"),
]


@pytest.mark.parametrize(("package", "file"), FILES)
def test_each_statement_has_a_purpose_and_an_end(package: str, file: str) -> None:
    for name, statement in load_queries(package, file).items():
        purpose, _, body = statement.decode().partition("\n")
        assert purpose.startswith(f"-- {name}: ")
        assert len(purpose) > len(f"-- {name}: ") + 5
        assert body.strip()
        assert not body.rstrip().endswith(";")


def test_a_name_given_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "-- a: One.\nSELECT 1;\n\n-- a: Again.\nSELECT 2;\n"

    class Folder:
        def joinpath(self, _: str) -> Folder:
            return self

        def read_text(self, _: str) -> str:
            return text

    monkeypatch.setattr("streams.fence.queries.resources.files", lambda _: Folder())
    with pytest.raises(ValueError, match="a is there twice"):
        load_queries("any")
