"""Log lines: what a traceback may show."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from streams.logs import configure_logs
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
