"""Loads SQL by name from a `.sql` file whose statements each start with a line `-- name: purpose`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

START = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)


def load_queries(package: str, file: str = "queries.sql") -> Mapping[str, bytes]:
    """The statements of `file` in `package` by name. Raises `ValueError` for a name given twice."""
    text = resources.files(package).joinpath(file).read_text("utf-8")
    starts = list(START.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    queries: dict[str, bytes] = {}
    for start, end in zip(starts, ends, strict=True):
        if start[1] in queries:
            raise ValueError(f"{package}/{file}: {start[1]} is there twice")
        # The purpose stays as a comment: it names the statement in pg_stat_activity and in the server's log.
        queries[start[1]] = text[start.start() : end].rstrip().removesuffix(";").encode()
    return MappingProxyType(queries)
