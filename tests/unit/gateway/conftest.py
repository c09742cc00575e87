"""The gateway's tests: our schemas, and the public ones where they are, check every frame that a client gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import wire_schemas
from tests.support.gateway_world import Peer, Served, World, serve
from tests.support.own_schemas import OwnSchemas

SCHEMAS = Path(__file__).parents[3].parent / "shared" / "converger-v1"


@cache
def server_frames() -> wire_schemas.WireSchemas | None:
    return wire_schemas.WireSchemas(SCHEMAS) if SCHEMAS.is_dir() else None


@cache
def own_frames() -> OwnSchemas:
    return OwnSchemas()


@pytest.fixture(autouse=True)
def _checked_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    public, own = server_frames(), own_frames()

    def check(frame: dict[str, Any]) -> None:
        own.check_from_server(frame)
        if public is not None:
            public.check_from_server(frame)

    monkeypatch.setattr(Peer, "check", staticmethod(check))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def served(world: World) -> AsyncIterator[Served]:
    async with serve(world) as running:
        yield running
