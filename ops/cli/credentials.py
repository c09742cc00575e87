"""What the commands share that ask the store of keys and tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from ops.cli.common import settings_from, translated_failures
from ops.cli.errors import USAGE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from streams.fence.credentials import CredentialStore

T = TypeVar("T")


def asked(
    postgres: str | None, kafka: str | None, namespace: str | None, question: Callable[[CredentialStore], Awaitable[T]]
) -> T:
    """What the store answers. `CommandFailed`: it cannot be reached, or the name is taken."""
    from streams.fence.credentials import CredentialStore, NameTaken

    async def ask() -> T:
        store = CredentialStore(settings.postgres)
        try:
            return await question(store)
        finally:
            await store.close()

    settings = settings_from(kafka, postgres, namespace)
    try:
        with translated_failures():
            return asyncio.run(ask())
    except NameTaken as error:
        raise CommandFailed(str(error), USAGE) from error
