"""Each exporter is a process of its own that is killed wherever it is: rows equal the journal's, once. So is each that
takes out of an export what was said in erased conversations: it is gone, and nothing else is.

    TURNLOG_TEST_KILLS=20 pytest tests/integration/test_export_killed.py

kills each one 20 times; by default it is fewer, so that the whole suite stays quick.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.support.exports import FORMATS, expected_in, export, found_in, read_back, seeded_history, whole
from tests.support.scrubbing import KEPT, expected, scrubbed, speaking, spoken

KILLS = int(os.environ.get("TURNLOG_TEST_KILLS", "5"))
INCREMENT = 40


def export_all(format_: str, root: str) -> None:
    """A life of the exporter: small increments, so that there is much to die in."""
    asyncio.run(export(seeded_history(), format_, Path(root), commit_records=INCREMENT))


def scrub_all(root: str) -> None:
    """A life of who takes it out."""
    scrubbed(Path(root))


def lives_that_end(made: Callable[[], BaseProcess], life_s: float, seed: str, whole_one: Callable[[], object]) -> None:
    """`KILLS` processes, each killed at some moment of its life. `whole_one`: called when one got to its end, before
    the next begins."""
    dice = random.Random(seed)
    killed = 0
    while killed < KILLS:
        process = made()
        process.start()
        assert process.pid is not None
        process.join(dice.uniform(0, life_s))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        process.join()
        assert process.exitcode in {0, -signal.SIGKILL}
        if process.exitcode == 0:
            whole_one()


@pytest.mark.parametrize("format_", FORMATS)
def test_killed_anywhere_rows_equal_the_journals_once(format_: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    # Imported once, so that a life is spent on exporting; nothing is started by that.
    context.set_forkserver_preload(["tests.support.exports", "tests.integration.test_export_killed"])
    started = time.monotonic()
    whole_life = context.Process(target=export_all, args=(format_, str(tmp_path / "measured")))
    whole_life.start()
    whole_life.join()
    assert whole_life.exitcode == 0
    life_s = time.monotonic() - started

    def another_target() -> None:
        whole(seeded_history(), format_, tmp_path / "killed")
        (tmp_path / "killed").rename(tmp_path / f"whole-{time.monotonic_ns()}")

    arguments = (format_, str(tmp_path / "killed"))
    lives_that_end(lambda: context.Process(target=export_all, args=arguments), life_s, format_, another_target)
    export_all(format_, str(tmp_path / "killed"))
    whole(seeded_history(), format_, tmp_path / "killed")


@pytest.mark.parametrize("format_", FORMATS)
def test_killed_while_words_are_taken_out_no_row_is_lost_and_they_are_gone(format_: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.exports", "tests.integration.test_export_killed"])
    history, fresh, root = spoken(rounds=4), tmp_path / "fresh", tmp_path / "tables"
    asyncio.run(export(history, format_, root, commit_records=10))  # where it stays: Iceberg's paths are absolute
    shutil.copytree(root, fresh)
    started = time.monotonic()
    scrub_all(str(root))
    life_s = time.monotonic() - started
    shutil.rmtree(root)
    shutil.copytree(fresh, root)

    def afresh() -> None:
        shutil.rmtree(root)
        shutil.copytree(fresh, root)

    lives_that_end(lambda: context.Process(target=scrub_all, args=(str(root),)), life_s * 1.5, format_, afresh)
    scrub_all(str(root))
    assert speaking(format_, root) == {KEPT, f"{KEPT} too"}
    for name, rows in expected(history).items():
        assert found_in(format_, read_back(format_, root, name)) == expected_in(format_, rows), name
