"""Where this user's things are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """`~/.cache/turnlog` (or below `XDG_CACHE_HOME`), and a folder in it: made, for its owner alone."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").joinpath("turnlog", *parts)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
