"""The page that explains the rules names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "explanation" / "rules.md"


def test_every_test_that_the_rules_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    defined = {name for path in HERE.glob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) > 40
    assert named <= defined
