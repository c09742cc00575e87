"""The same commands give the same journal and the same state on any machine: field reports 22 and 57."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

DIGEST = """
from hashlib import sha256
import msgspec
from streams.core.fold import step
from streams.core.state import Partition
from tests.support.command_sequences import seeded_commands
from tests.support.partition_world import image

state = Partition(0)
entries = [entry for command in seeded_commands(42, 4000) for entry in step(state, command, 1)]
digest = sha256(msgspec.msgpack.encode([[type(entry.event).__name__, entry] for entry in entries]))
for id_, row in sorted(image(state).items()):
    digest.update(id_.encode() + row)
print(len(entries), digest.hexdigest())
"""


def digest(**environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", DIGEST],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_any_hash_seed_time_zone_and_locale_gives_the_same_journal() -> None:
    first = digest(PYTHONHASHSEED="0")
    assert int(first.split()[0]) > 1000
    assert digest(PYTHONHASHSEED="1", TZ="Asia/Tokyo") == first
    assert digest(PYTHONHASHSEED="42", TZ="America/New_York", LC_ALL="tr_TR.UTF-8") == first
