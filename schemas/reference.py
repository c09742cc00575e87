"""The field tables of the topic reference, made from the schemas.

    python -m schemas.reference docs/reference/topics-and-schemas.md

rewrites, in that page, what stands between `<!-- fields of NAME -->` and `<!-- end -->` for each NAME of the schemas.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from schemas import Schema, current
from schemas.definitions import envelope_branches, records

Json = Any
_BLOCK = re.compile(r"(<!-- fields of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """`page` with its generated blocks as the current schemas have them. Raises `KeyError` for an unknown name."""
    return _BLOCK.sub(lambda block: f"{block[1]}{tables(current(block[2]))}{block[3]}", page)


def tables(schema: Schema) -> str:
    """Markdown: for each record of `schema`, outermost first, what it is and a table of its fields."""
    return "".join(_table(schema, record) for record in records(schema.definition))


def _table(schema: Schema, record: dict[str, Any]) -> str:
    lines = [f"#### {record['name']}", "", record["doc"], ""]
    if record["fields"]:
        lines += ["| field | type | default | meaning |", "|---|---|---|---|", *_rows(schema, record), ""]
    return "\n".join(lines) + "\n"


def _rows(schema: Schema, record: dict[str, Any]) -> Iterator[str]:
    for field in record["fields"]:
        default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
        if field is schema.definition["fields"][-1] and envelope_branches(schema):
            kind = "one of the records below"
        else:
            kind = _type(field["type"])
        cells = (f"`{field['name']}`", kind, default, field["doc"])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(node: Json) -> str:
    match node:
        case str():
            return node
        case ["null", inner]:
            return f"{_type(inner)}, or null"
        case {"type": "array", "items": items}:
            return f"array of {_type(items)}"
        case {"type": "map", "values": values}:
            return f"map of {_type(values)}"
        case {"type": "record", "name": name}:
            return str(name)
    raise TypeError(f"no words for the type {node!r}")


def main(arguments: Sequence[str]) -> int:
    """Rewrite the pages named; returns the exit code."""
    for name in arguments:
        page = Path(name)
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
