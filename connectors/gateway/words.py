"""Where words are sealed and opened at a gateway: before the intake, and behind each way that the journal comes in.

All between them speaks of what was said. What cannot be opened because a server does not answer is `Unavailable`; the
tail, which may leave nothing out, waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
import structlog

from connectors.gateway.ports import Headers, Intake, Stored, Unavailable, Written
from streams.core.commands import Command
from streams.core.events import Entry
from streams.fence.port import FenceUnavailable
from streams.fence.signing import MasterKeyError
from streams.runtime.signals import Signal
from streams.sealing.keyring import Keyring
from streams.sealing.store import CopiesUnavailable

log = structlog.get_logger(__name__)

RETRY_S: Final = 0.5
AWAY: Final = (FenceUnavailable, CopiesUnavailable, MasterKeyError)


class Words(Protocol):
    """Opens what is sealed. Methods raise `Unavailable`."""

    async def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """The entries with their words as they were said."""

    async def text(self, name: str, text: str | None) -> str | None:
        """One field of this name."""


class OpenedWords:
    """`Words` by a keyring."""

    def __init__(self, ring: Keyring) -> None:
        self._ring = ring

    async def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """See `Words`."""
        try:
            return await self._ring.open(entries)
        except AWAY as error:
            raise Unavailable(f"what was said cannot be opened now: {error}") from error

    async def text(self, name: str, text: str | None) -> str | None:
        """See `Words`."""
        try:
            return await self._ring.open_text(name, text)
        except AWAY as error:
            raise Unavailable(f"what was said cannot be opened now: {error}") from error


async def insisted(words: Words, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries opened, whenever that can be."""
    told = False
    while True:
        try:
            return await words.entries(entries)
        except Unavailable as error:
            if not told:
                log.warning("the journal's tail waits for the keys of what was said", error=str(error))
            told = True
            await asyncio.sleep(RETRY_S)


async def opened(words: Words, stored: Sequence[Stored]) -> list[Stored]:
    """A part of a transcript, opened."""
    entries = await words.entries([each.entry for each in stored])
    return [msgspec.structs.replace(each, entry=entry) for entry, each in zip(entries, stored, strict=True)]


class SealingIntake:
    """`Intake` that seals what is said before it is written."""

    def __init__(self, intake: Intake, ring: Keyring) -> None:
        self._intake = intake
        self._ring = ring

    @property
    def partitions(self) -> int:
        """See `Intake`."""
        return self._intake.partitions

    async def send(
        self, command: Command | Signal, *, partition: int | None = None, headers: Headers = ()
    ) -> asyncio.Future[Written]:
        """See `Intake`. Without the conversation's key nothing is written."""
        if isinstance(command, Command):
            try:
                command = await self._ring.seal(command)
            except AWAY as error:
                raise Unavailable(f"what is said cannot be sealed now: {error}") from error
        return await self._intake.send(command, partition=partition, headers=headers)
