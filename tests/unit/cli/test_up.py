"""What `turnlog up` prints for the next terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ops.cli.up import exported


def stack(*channels: tuple[str, str]) -> Any:
    return SimpleNamespace(channels=[SimpleNamespace(kind=kind, secret=secret) for kind, secret in channels])


def test_the_first_secret_of_each_side_is_there_to_be_exported() -> None:
    lines = exported(stack(("websocket", "s-agents"), ("web", "s-web"), ("web", "s-other")))
    assert lines == "  export TURNLOG_CHANNEL_SECRET=s-web\n  export AGENTS_SECRET=s-agents\n"


def test_a_side_without_a_channel_has_none() -> None:
    assert exported(stack(("websocket", "s-agents"))) == "  export AGENTS_SECRET=s-agents\n"
