"""`turnlog chat`: what it needs."""

from __future__ import annotations

import pytest

from ops.cli.command_line import run


def test_without_a_secret_it_says_where_one_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TURNLOG_CHANNEL_SECRET", raising=False)
    assert run(["chat"]) == 64
    assert "TURNLOG_CHANNEL_SECRET" in capsys.readouterr().err


def test_a_gateway_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "--secret", "s", "--gateway", "http://127.0.0.1:9"]) == 2
    assert "is a gateway there?" in capsys.readouterr().err
