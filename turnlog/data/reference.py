"""The tables' columns in the data contract, made from `tables`.

    python -m turnlog.data.reference docs/reference/data-contract.md

rewrites, in that page, what stands between `<!-- columns of NAME -->` and `<!-- end -->` for each table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from turnlog.data.tables import BY_NAME, COMMON, Column

_BLOCK = re.compile(r"(<!-- columns of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_columns(page: str) -> str:
    """`page` with its generated blocks as the tables are now. Raises `KeyError` for a name that is no table."""
    return _BLOCK.sub(lambda block: f"{block[1]}{_told(block[2])}{block[3]}", page)


def _told(name: str) -> str:
    columns: Sequence[Column] = COMMON if name == "all" else BY_NAME[name].columns[len(COMMON) :]
    doc = "Every table begins with these." if name == "all" else BY_NAME[name].doc
    lines = [doc, "", "| column | type | null | meaning |", "|---|---|---|---|"]
    for column in columns:
        null = "yes" if column.nullable else ""
        cells = (f"`{column.name}`", _type(column.type), null, column.doc)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _type(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return f"list of {_type(type_.value_type)}"
    if pa.types.is_struct(type_):
        return f"({', '.join(f'{field.name} {_type(field.type)}' for field in type_)})"
    if pa.types.is_timestamp(type_):
        return "timestamp, UTC"
    return str(type_)


def main(arguments: Sequence[str]) -> int:
    """Rewrite the pages named; returns the exit code."""
    for name in arguments:
        page = Path(name)
        page.write_text(with_columns(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
