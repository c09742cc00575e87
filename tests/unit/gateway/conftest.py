"""The gateway's tests: the public schemas, where they are, check every frame that a client gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import wire_schemas
from tests.support.gateway_world import Peer, Served, World, serve

SCHEMAS = Path(__file__).parents[3].parent / "shared" / "converger-v1"


@cache
def server_frames() -> wire_schemas.WireSchemas | None:
    return wire_schemas.WireSchemas(SCHEMAS) if SCHEMAS.is_dir() else None


@pytest.fixture(autouse=True)
def _checked_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = server_frames()
    check: Any = schemas.check_from_server if schemas is not None else None
    monkeypatch.setattr(Peer, "check", staticmethod(check) if check is not None else None)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def served(world: World) -> AsyncIterator[Served]:
    async with serve(world) as running:
        yield running
