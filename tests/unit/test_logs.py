"""Log lines: what a traceback may show."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from streams.logs import Places, configure_logs
from streams.runtime.partitioning import partition_of
from streams.settings import LogFormat

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Logging is as it was, after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def fail() -> None:
    password = "hunter2"
    raise ValueError(f"a password of {len(password)} characters")


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_a_traceback_shows_no_local_variables(capsys: pytest.CaptureFixture[str], log_format: LogFormat) -> None:
    configure_logs(log_format)
    try:
        fail()
    except ValueError:
        structlog.get_logger("streams.test").exception("it failed")
    logged = capsys.readouterr().err
    assert "a password of 7 characters" in logged
    assert "fail" in logged
    assert "hunter2" not in logged.replace('password = "hunter2"', "")
    if log_format is LogFormat.JSON:
        assert json.loads(logged)["event"] == "it failed"


def test_a_line_about_a_conversation_says_in_which_partition_it_lies(capsys: pytest.CaptureFixture[str]) -> None:
    places = Places()
    configure_logs(LogFormat.JSON, places)
    log = structlog.get_logger("streams.test")
    log.info("not known yet", conversation="c1")
    places.partitions = 16
    log.info("by its name", conversation="c1")
    log.info("by its line's own word", conversation="c1", partition=3)
    log.info("of none", conversation="")
    with structlog.contextvars.bound_contextvars(conversation="c1"):
        log.info("by where it is said")
    logging.getLogger("turnlog").error("by the SDK", extra={"conversation": "c1", "run": "c1/1/agents", "name_": "x"})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    home = partition_of("c1", 16)
    assert {line["event"]: line.get("partition") for line in lines} == {
        "not known yet": None,
        "by its name": home,
        "by its line's own word": 3,
        "of none": None,
        "by where it is said": home,
        "by the SDK": home,
    }
    assert (lines[-1]["run"], "name_" in lines[-1]) == ("c1/1/agents", False)
