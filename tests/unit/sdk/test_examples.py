"""The pages' code is the code that runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import turnlog

DOCS = Path(__file__).parents[3] / "docs"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [DOCS / "tutorial.md", DOCS / "how-to" / "write-an-agent.md"]


def test_the_tutorials_agent_is_the_example() -> None:
    (listing,) = PYTHON.findall(PAGES[0].read_text())
    _, _, code = (DOCS / "examples" / "agent.py").read_text().partition('"""\n\n')
    assert listing == code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_listings_are_python_and_use_what_there_is(page: Path) -> None:
    for listing in PYTHON.findall(page.read_text()):
        tree = compile(listing, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "turnlog":
                assert {name.name for name in node.names} <= set(turnlog.__all__)
