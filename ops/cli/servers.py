"""Which servers a command that looks back needs: none, where it reads an archive alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.cli.common import settings_from
from ops.cli.errors import USAGE, CommandFailed

if TYPE_CHECKING:
    from streams.settings import Settings


def settings_of(
    kafka: str | None, postgres: str | None, namespace: str | None, *, archive: str | None, offline: bool
) -> Settings | None:
    """The settings; None: an archive is read alone, and needs none. `CommandFailed`: without an archive it cannot."""
    if not offline:
        return settings_from(kafka, postgres, namespace)
    if archive is None:
        raise CommandFailed("--offline: say which archive with --archive URL", USAGE)
    return None
