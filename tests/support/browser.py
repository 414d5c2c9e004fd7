"""Drives the system's Chromium with Playwright, and records its requests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

BINARIES = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = (1120, 800), (390, 780)


@contextmanager
def chromium() -> Iterator[Any]:
    """Yields a running browser. Skips the test if there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    binary = next(filter(None, map(shutil.which, BINARIES)), None)
    if binary is None:
        pytest.skip(f"needs a browser: one of {', '.join(BINARIES)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=binary,
            chromium_sandbox=False,  # root cannot use the sandbox; only our own pages are opened
            args=["--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page in its own window, with the hosts it contacted and its errors."""

    def __init__(self, browser: Any, url: str, size: tuple[int, int], scheme: str) -> None:
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        self.page = self.context.new_page()
        self.hosts: set[str] = set()
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("dialog", self._hear_dialog)
        self.page.goto(url)

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _hear_dialog(self, dialog: Any) -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def send(self, text: str, runs: int = 1) -> None:
        """Types a message, presses Enter, and waits until its runs have ended."""
        turns = self.page.locator(".turn").count()
        self.page.locator("#prompt").fill(text)
        self.page.keyboard.press("Enter")
        turn = self.page.locator(".turn").nth(turns)
        turn.locator('.run[aria-busy="false"]').nth(runs - 1).wait_for(timeout=60_000)
        if runs > 1:
            turn.locator(".verdict").wait_for()

    def set(self, **settings: object) -> None:
        self.page.locator("#settings-button").click()
        for name, value in settings.items():
            self.page.locator(f"#{name.replace('_', '-')}").fill(str(value))
        self.page.locator("#settings-button").click()

    def close(self) -> None:
        self.context.close()


@contextmanager
def visiting(
    browser: Any, url: str, size: tuple[int, int] = DESKTOP, scheme: str = "light"
) -> Iterator[Visit]:
    visit = Visit(browser, url, size, scheme)
    try:
        yield visit
    finally:
        visit.close()
