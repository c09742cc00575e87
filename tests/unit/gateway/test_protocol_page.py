"""The page of the protocol says what the tables of the code say."""

from __future__ import annotations

import re
from pathlib import Path

from connectors.gateway.protocol.errors import REFUSALS, SPECS
from connectors.gateway.protocol.parse_person import MODELS
from streams.core.events import RefusedReason

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "protocol.md").read_text("utf-8")


def test_the_table_of_errors_is_the_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (yes|no) \| ?(\d*) ?\| (\d+) \|$", PAGE, re.MULTILINE)
    assert {
        code: (int(number), again == "yes", int(close or 0), int(status)) for code, number, again, close, status in rows
    } == {code: (spec.number, spec.retryable, spec.close or 0, spec.status) for code, spec in SPECS.items()}


def test_what_people_send_beside_messages_is_named() -> None:
    for kind in MODELS:
        assert f"`{kind}`" in PAGE


def test_every_refusal_of_the_core_has_a_code() -> None:
    assert set(REFUSALS) == set(RefusedReason)
    assert set(REFUSALS.values()) <= set(SPECS)
