"""`turnlog up` as a person starts it: a process of its own, known by its ready line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import httpx

from tests.support.command import turnlog_async
from tests.support.waiting import until

STOP_S = 60.0


@dataclass(slots=True)
class Up:
    """A running `turnlog up`."""

    document: dict[str, Any]
    """Its ready line."""
    process: subprocess.Popen[str]
    data: Path
    log: Path
    """What it says to people."""
    expected: int = 0
    """The exit code that it must end with."""

    def expect(self, code: int) -> None:
        """It was ended in another way than by SIGTERM."""
        self.expected = code

    def told(self) -> str:
        """What it has said to people so far."""
        return self.log.read_text("utf-8")

    @property
    def gateways(self) -> list[str]:
        """Base URLs, the main one first."""
        return [str(gateway["url"]) for gateway in self.document["gateways"]]

    @property
    def environment(self) -> dict[str, str]:
        """What points other commands to its servers."""
        return {"TURNLOG_KAFKA": self.document["kafka"], "TURNLOG_POSTGRES": self.document["postgres"]}

    def secret(self, channel: str) -> str:
        """Login secret of a channel."""
        return next(str(each["secret"]) for each in self.document["channels"] if each["id"] == channel)


async def add_channels(
    up: Up, folder: Path, channels: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Channels and routes beside those that are there; the new channels' secrets. Every gateway knows them then."""
    listed = await turnlog_async("channel", "list", "-o", "json", environment=up.environment)
    document = {
        "channels": [*listed.document["channels"], *channels],
        "routes": [*listed.document["routes"], *routes],
    }
    file = folder / "channels.json"
    file.write_text(json.dumps(document))
    applied = await turnlog_async("channel", "apply", str(file), "--yes", "-o", "json", environment=up.environment)
    assert applied.code == 0, applied.err
    secrets: dict[str, str] = applied.document["secrets"]
    newest = channels[-1]  # they are one document, for which each gateway looks once a second
    scope = "channel" if newest["kind"] == "websocket" else "conversation"
    for gateway in up.gateways:
        await until(partial(_serves, gateway, secrets[newest["id"]], scope))
    return secrets


async def _serves(gateway: str, secret: str, scope: str) -> bool:
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=gateway, timeout=30) as http:
        answer = await http.post("/api/v1/converger/tokens/generate", headers=headers, json={"scope": scope})
    return answer.is_success


@contextmanager
def turnlog_up(
    data: Path, *options: str, kept: bool = True, environment: Mapping[str, str] | None = None
) -> Iterator[Up]:
    """Start it, wait for its ready line, and stop it with SIGTERM; its exit code must then be 0.

    `kept` False: without `--data`; `data` only names the log beside it. `environment` is added to this process's.
    """
    path = data.parent / f"{data.name}-up.log"
    folder = ["--data", str(data)] if kept else []
    with path.open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.cli", "up", "--port", "0", "-o", "json", *folder, *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            up = Up(_ready_line(process, log), process, data, path)
            yield up
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                if process.stdout is not None:
                    process.stdout.close()
        log.seek(0)
        assert code == up.expected, f"`turnlog up` ended with {code} after SIGTERM:\n{log.read()[-4000:]}"


def _ready_line(process: subprocess.Popen[str], log: IO[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        log.seek(0)
        raise AssertionError(f"`turnlog up` ended before it was ready:\n{log.read()[-4000:]}")
    document: dict[str, Any] = json.loads(line)
    assert document["event"] == "ready", document
    return document
