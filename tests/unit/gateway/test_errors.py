"""The table of error codes is the public specification's, where that is beside this repository."""

from __future__ import annotations

import pytest

from connectors.gateway.protocol.errors import SPECS
from tests.unit.gateway.conftest import SCHEMAS

TABLE = SCHEMAS / "ERRORS.md"
LINES = TABLE.read_text().splitlines() if TABLE.is_file() else []
CELLS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in LINES if line.startswith("|")]
ROWS = [cells for cells in CELLS if cells[1].isdigit()]


@pytest.mark.skipif(not ROWS, reason="the public table is not beside this repository")
def test_the_public_table_is_whole() -> None:
    assert len(ROWS) == 23


@pytest.mark.parametrize(("code", "number", "retryable", "closes", "status"), ROWS, ids=[row[0] for row in ROWS])
def test_a_code_is_as_the_specification_has_it(
    code: str, number: str, retryable: str, closes: str, status: str
) -> None:
    spec = SPECS[code]
    assert spec.number == int(number)
    assert spec.retryable is (retryable == "yes")  # a refresh, and not a repeat, mends an expired token
    if closes.isdigit():
        assert spec.close == int(closes)
    else:  # 1009 is the socket's own, above the hard cap
        assert spec.close is None
    if status:
        assert spec.status == int(status)
