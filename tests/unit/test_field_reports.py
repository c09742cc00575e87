"""Every test that the page of field reports names exists, and every report has one, or says why it needs none."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "field-reports.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
REPORTS = {1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 14, 15, 17, 19, 20, 21, 22, 23, 25, 40, 41, 43, 44, 56, 57, 58, 59, 60}


def test_every_test_that_is_named_exists() -> None:
    missing = [
        f"{path}::{name}"
        for path, name in NAMED.findall(PAGE)
        if not (ROOT / path).exists()
        or re.search(rf"^\s*(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE) is None
    ]
    assert missing == []


def test_every_report_has_its_source_and_a_test_or_a_reason() -> None:
    sections = re.split(r"^### (\d+)\. ", PAGE, flags=re.MULTILINE)
    told = {int(number): text for number, text in zip(sections[1::2], sections[2::2], strict=True)}
    assert set(told) == REPORTS
    assert [number for number, text in told.items() if "](https://" not in text] == []
    assert [number for number, text in told.items() if not NAMED.search(text) and "Cannot happen" not in text] == []


def test_every_test_of_the_field_reports_folder_is_named() -> None:
    named = {name for path, name in NAMED.findall(PAGE) if path.startswith("tests/field_reports/")}
    written = {
        name
        for path in (ROOT / "tests" / "field_reports").glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert written == named
