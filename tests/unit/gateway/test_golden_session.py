"""A session of ours, frame by frame as it is kept in `golden_session.json`: what either side says, and what each gets
of it from the log, in order. Ids are `$1`, `$2` … by their first appearance; times are 0. A change of the file is a
change of the protocol."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.gateway_world import Peer, Served, World, serve, settings_for

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).with_name("golden_session.json")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PLACEHOLDER = re.compile(r"\$\d+")
TIME = re.compile(r'("timestamp": )\d+')
MAY_BE_LOST = frozenset({"typing", "presence", "deliveryStatus", "heartbeat"})
"""Of these the order is nobody's promise."""

Frame = dict[str, Any]
Side = Literal["person", "agent"]


class Names:
    """Ids that a server chose, by what the file calls them."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def told(self, frame: Frame) -> Frame:
        """A frame as the file has it."""
        text = UUID.sub(lambda found: self._known.setdefault(found[0], f"${len(self._known) + 1}"), json.dumps(frame))
        told: Frame = json.loads(TIME.sub(r"\g<1>0", text))
        return told

    def meant(self, frame: Frame) -> Frame:
        """What the file says, with this session's ids."""
        ids = {name: real for real, name in self._known.items()}
        meant: Frame = json.loads(PLACEHOLDER.sub(lambda found: ids[found[0]], json.dumps(frame)))
        return meant


class Session:
    """A person and an agent, each on a socket."""

    def __init__(self, served: Served, conversation: str, person: Peer, agent: Peer) -> None:
        self._served = served
        self._conversation = conversation
        self._peers: dict[Side, Peer] = {"person": person, "agent": agent}
        self.names = Names()
        self.names.told({"conversation": conversation})

    async def say(self, by: Side, frame: Frame) -> None:
        meant = self.names.meant(frame)
        if by == "agent":
            await self._peers[by].say(self._conversation, meant)
        else:
            await self._peers[by].send(meant)

    async def gets(self, side: Side) -> Frame:
        """The next frame of the log that this side is shown."""
        while True:
            frame = await self._peers[side].frame()
            inner: Frame = frame.get("frame", frame)
            if inner["type"] not in MAY_BE_LOST:
                return self.names.told(inner)

    async def rest(self, side: Side) -> list[Frame]:
        """What it has got beyond that."""
        return [each for each in await self._peers[side].settled() if each["type"] not in MAY_BE_LOST]


@asynccontextmanager
async def session(world: World) -> AsyncIterator[Session]:
    """Both are there, and nothing was said yet."""
    async with serve(world, settings_for(member_ttl_ms=60_000)) as served:
        conversation, token = await served.conversation("ann")
        hello = {"conversationId": conversation, "watermark": 0, "capabilities": ["superseded", "edited"]}
        async with (
            served.agent(userId="bot-7", capabilities=["continue"]) as agent,
            served.socket(token, hello) as person,
        ):
            await person.until("welcome")
            yield Session(served, conversation, person, agent)


async def test_the_session_goes_as_it_is_kept(world: World) -> None:
    steps = json.loads(GOLDEN.read_text("utf-8"))
    async with session(world) as playing:
        for number, step in enumerate(steps):
            await playing.say(step["by"], step["says"])
            sides: tuple[Side, Side] = ("person", "agent")
            for side in sides:
                for expected in step.get(f"{side} gets", ()):
                    assert await playing.gets(side) == expected, f"step {number}: {step['says']}"
        assert await playing.rest("person") == []
        assert await playing.rest("agent") == []
    assert len(steps) > 15
