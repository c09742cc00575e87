"""A headless Chromium of this machine, for the tests of pages; they are skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# As root there is no sandbox to be had; and nothing of the browser's own is to look for hosts that no test needs.
OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def chromium() -> Path | None:
    """Where the browser is; None: this machine has none."""
    return next((Path(found) for name in PROGRAMS if (found := shutil.which(name))), None)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser without a window, for as long as the block runs."""
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=chromium(), args=OPTIONS)
        try:
            yield opened
        finally:
            await opened.close()
