"""Which servers a command needs: not both of them always, and none where it reads an archive alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ops.cli.common import settings_from
from ops.cli.errors import USAGE, CommandFailed

if TYPE_CHECKING:
    from streams.settings import Settings

NO_KAFKA: Final = "unused:1"
"""For a command in which Kafka plays no part; the setting is required of servers alone."""
NO_POSTGRES: Final = "postgresql://unused"
"""For a command in which PostgreSQL plays no part."""


def settings_of(
    kafka: str | None, postgres: str | None, namespace: str | None, *, archive: str | None, offline: bool
) -> Settings | None:
    """The settings; None: an archive is read alone, and needs none. `CommandFailed`: without an archive it cannot."""
    if not offline:
        return settings_from(kafka, postgres, namespace)
    if archive is None:
        raise CommandFailed("--offline: say which archive with --archive URL", USAGE)
    return None
