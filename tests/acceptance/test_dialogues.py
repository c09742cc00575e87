"""Real dialogues through everything: two workers, two gateways, four agents in one group."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command import turnlog_async
from tests.support.people import ROOT, Dialogue, Held, agents, dialogues, given, hold_all
from tests.support.up import Up, turnlog_up

DIALOGUES = 500


def expected(dialogue: Dialogue) -> list[tuple[int, str, str]]:
    """What a person must have seen: each line, its answer, and nothing else, numbered without a gap."""
    said = [spoken for line in dialogue.lines for spoken in (("user", line), ("bot", f"answer to {line}"))]
    return [(seq, role, text) for seq, (role, text) in enumerate(said, start=1)]


def assert_went_well(held: Sequence[Held]) -> None:
    for each in held:
        assert each.heard == expected(each.dialogue)
        assert set(each.repeated_ids) <= set(each.ids)
        assert len(set(each.ids)) == len(each.ids)


@pytest.mark.timeout(1200)
async def test_five_hundred_dialogues_are_answered_once_in_order_and_the_log_proves_it(tmp_path: Path) -> None:
    with turnlog_up(tmp_path / "data", "--workers", "2", "--gateways", "2") as up:
        all_of = dialogues(DIALOGUES)
        turns = sum(len(dialogue.lines) for dialogue in all_of)
        async with agents(up, f"g{uuid.uuid4().hex[:8]}", 4) as four:
            held = await hold_all(up, all_of)
            took = given(four)
            shares = [len(given([agent])) for agent in four]
        assert_went_well(held)
        assert sum(len(each.repeated_ids) for each in held) >= turns // 12
        assert Counter((turn["conversation"], turn["seq"]) for turn in took).most_common(1)[0][1] == 1
        assert len(took) == turns
        assert all(share > turns / 16 for share in shares), shares
        verdict = await turnlog_async("audit", "verify", "-o", "json", environment=up.environment)
        assert (verdict.code, verdict.document["violations"]) == (0, [])
        counted = {name: verdict.document[name] for name in ("turns", "answered", "open", "takeovers", "fenced")}
        assert counted == {"turns": turns, "answered": turns, "open": 0, "takeovers": 0, "fenced": 0}
        assert_a_stranger_sees_no_gap(up)


def assert_a_stranger_sees_no_gap(up: Up) -> None:
    """A plain aiokafka reader that knows the schema's file and nothing else of this project."""
    reader = ROOT / "docs" / "examples" / "read_journal.py"
    schema = ROOT / "schemas" / "avro" / "journal.avsc"
    read = subprocess.run(
        [sys.executable, str(reader), "--kafka", up.document["kafka"], "--schema", str(schema)],
        capture_output=True,
        text=True,
        check=False,
        cwd=up.data,
    )
    assert read.returncode == 0, read.stdout + read.stderr
