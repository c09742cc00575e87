"""A data engineer's path: every block of `docs/how-to/data.md`, in order, on a journal that a real broker has."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops.embedded import EmbeddedStack
from tests.support.exports import seeded_history, write_seeded

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "data.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LENGTH = 120


def run(kind: str, text: str, folder: Path, environment: dict[str, str]) -> str:
    """Run one block as a reader of the page does; its output."""
    if kind == "sh":
        # What is installed here already would come from elsewhere.
        text = "\n".join(line for line in text.splitlines() if not line.startswith("pip install"))
        command = ["bash", "-euo", "pipefail", "-c", text]
    elif kind == "python":
        command = [sys.executable, "-c", text]
    else:
        assert kind == "sql"
        command = [sys.executable, "-m", "ops.cli", "sql", "--export", "tables", text]
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture
def environment(stack: EmbeddedStack, fresh_namespace: str, tmp_path: Path) -> dict[str, str]:
    """What a shell in the repository's root has; the page's topics are the namespace's."""
    asyncio.run(write_seeded(stack.kafka, fresh_namespace, LENGTH, timed=False))
    for name in ("docs", "schemas"):
        (tmp_path / name).symlink_to(ROOT / name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TURNLOG_KAFKA": stack.kafka,
        "TURNLOG_NAMESPACE": fresh_namespace,
    }


def test_every_block_of_the_page_runs_and_says_what_is_there(environment: dict[str, str], tmp_path: Path) -> None:
    namespace = environment["TURNLOG_NAMESPACE"]
    outputs = []
    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        # The page is of a deployment without a namespace; these tests share a broker.
        named = text.replace("confluent_reader.py", f"confluent_reader.py --topic {namespace}.conversations")
        named = named.replace(
            'Journal(os.environ["TURNLOG_KAFKA"])', f'Journal(os.environ["TURNLOG_KAFKA"], namespace="{namespace}")'
        )
        outputs.append((text, run(kind, named, tmp_path, environment)))
    said = "".join(output for _, output in outputs)
    rows = seeded_history(length=LENGTH).rows()
    [count] = [output for text, output in outputs if ".count()" in text]
    assert int(count) == len(rows["turns"])
    [count] = [output for text, output in outputs if "load_catalog" in text]
    assert int(count) == len(rows["turns"])
    assert "TurnCommitted" in said
    again = run(
        "sh", f"python docs/examples/confluent_reader.py --topic {namespace}.conversations", tmp_path, environment
    )
    assert '"new_events": 0' in again
