"""Those who talk while faults happen: each with a conversation, a key for each line, and the patience to repeat it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from ops.chaos.viewers import Viewer

API: Final = "/api/v1/converger"
REQUEST_S: Final = 8.0
AGAIN_S: Final = (0.2, 1.0)
PAUSE_S: Final = (0.3, 1.2)
LISTENS_S: Final = 6.0
"""How long a person who wants to hear the answer waits before it says the next line all the same."""
MODES: Final = ("text", "text", "stream", "slow")
PADDING: Final = "x"
REPEAT_SHARE: Final = 0.1
LISTEN_SHARE: Final = 0.6
TEMPORARY: Final = frozenset({429, 503})


@dataclass(slots=True)
class Line:
    """One thing that a person says."""

    key: str
    text: str
    tries: int = 0
    id: str | None = None
    """Message id that the gateway answered with: by then it is committed."""
    seq: int | None = None


@dataclass(slots=True)
class Person:
    """Says one line after the other, each until a gateway says that it is committed."""

    name: str
    urls: Sequence[str]
    rng: random.Random
    problems: list[str]
    """Shared by all: what no client should ever get."""
    lines: list[Line] = field(default_factory=list)
    conversation: str = ""
    token: str = ""
    refusals: dict[str, int] = field(default_factory=dict)
    """Temporary refusals and lost requests, by kind."""

    async def arrive(self, http: httpx.AsyncClient, secret: str) -> None:
        """A token and a conversation of its own."""
        bearer = {"Authorization": f"Bearer {secret}"}
        made = await self._until_taken(http, f"{API}/tokens/generate", bearer, {"user": {"id": self.name}})
        headers = {"Authorization": f"Bearer {made['token']}", "X-Idempotency-Key": f"open-{self.name}"}
        opened = await self._until_taken(http, f"{API}/conversations", headers, {})
        self.conversation, self.token = opened["conversationId"], opened["token"]

    async def talk(self, http: httpx.AsyncClient, viewer: Viewer, stop: asyncio.Event) -> None:
        """Until `stop`; then the line that it is at is said to its end."""
        while not stop.is_set():
            line = await self.say(http)
            if self.rng.random() < REPEAT_SHARE:
                await self._repeat(http, self.rng.choice(self.lines[-3:]))
            if self.rng.random() < LISTEN_SHARE:
                await viewer.heard(line.text, LISTENS_S)
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))

    async def say(self, http: httpx.AsyncClient, *, padding: int = 0) -> Line:
        """The next line, until it is committed. `padding`: so many characters more, and a plain answer."""
        number = len(self.lines)
        mode = f"{PADDING * padding}-{MODES[0]}" if padding else self.rng.choice(MODES)
        line = Line(key=f"{self.name}-{number}", text=f"{self.name}-{number}-{mode}")
        self.lines.append(line)
        answer = await self._send(http, line)
        line.id, line.seq = str(answer["id"]), answer.get("seq")
        return line

    async def _repeat(self, http: httpx.AsyncClient, line: Line) -> None:
        answer = await self._send(http, line)
        if (answer["id"], answer.get("seq")) != (line.id, line.seq):
            self.problems.append(
                f"a repeat of {line.key} was answered with {answer['id']} (seq {answer.get('seq')}), the first one "
                f"with {line.id} (seq {line.seq})"
            )

    async def _send(self, http: httpx.AsyncClient, line: Line) -> dict[str, Any]:
        path = f"{API}/conversations/{self.conversation}/activities"
        headers = {"Authorization": f"Bearer {self.token}", "X-Idempotency-Key": line.key}
        return await self._until_taken(http, path, headers, {"type": "message", "text": line.text}, line)

    async def _until_taken(
        self,
        http: httpx.AsyncClient,
        path: str,
        headers: dict[str, str],
        body: dict[str, Any],
        line: Line | None = None,
    ) -> dict[str, Any]:
        """Repeat it, at one gateway and the other, until it is taken."""
        at = self.rng.randrange(len(self.urls))
        while True:
            if line is not None:
                line.tries += 1
            try:
                answer = await http.post(self.urls[at % len(self.urls)] + path, headers=headers, json=body)
            except httpx.TransportError as error:
                self._count(type(error).__name__)
            else:
                if answer.is_success:
                    taken: dict[str, Any] = answer.json()
                    return taken
                self._refused(path, answer)
            at += 1
            await asyncio.sleep(self.rng.uniform(*AGAIN_S))

    def _refused(self, path: str, answer: httpx.Response) -> None:
        error = answer.json().get("error", {})
        self._count(str(error.get("code")))
        if answer.status_code not in TEMPORARY:
            self.problems.append(f"POST {path} was refused for good: {answer.status_code} {error}")
        elif "Retry-After" not in answer.headers or "retryAfterMs" not in error.get("details", {}):
            self.problems.append(f"POST {path}: {answer.status_code} {error.get('code')} says nothing of a retry")

    def _count(self, kind: str) -> None:
        self.refusals[kind] = self.refusals.get(kind, 0) + 1
