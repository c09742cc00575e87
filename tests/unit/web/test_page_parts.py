"""The pages' parts that need no page, in Node: the one that drives the browser of the page's other tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable


@pytest.mark.parametrize("tests", ["page.test.mjs", "console.test.mjs"])
def test_the_parts_of_the_page_do_what_their_own_tests_say(tests: str) -> None:
    node = compute_driver_executable()[0]
    command = [node, "--test", "--test-reporter=tap", str(Path(__file__).with_name(tests))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout
    assert "# pass 0" not in done.stdout
