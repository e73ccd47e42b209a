"""Chromium for tests: Debian's, or another that is installed; never one that is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, expect, sync_playwright

from savegame.errors import UnsupportedError

expect.set_options(timeout=30_000)  # other tests may run beside these

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window. As root it needs to run without its sandbox."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise UnsupportedError("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found, args=options)
        yield browser
        browser.close()
