"""Photographs the page on a demo server of its own: python -m docs.screenshots writes docs/images/*.png.

Chromium and the development dependencies are needed. What is in the pictures really happened, the crash too.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from docs.smaller_png import smaller

IMAGES = Path(__file__).with_name("images")
MAX_BYTES = 150_000
DESK = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=390, height=844)
PATIENCE_MS = 60_000
"""How long something may take that must come."""


class Server:
    """`holdfast serve` with the demo model, in a folder that goes with it."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._work = folder / "garden"
        self._work.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        command = (sys.executable, "-m", "holdfast", "serve", "--model", "demo", "--data-dir", str(self._data))
        port = self.url.rpartition(":")[2] or "0"
        self._process = subprocess.Popen(
            (*command, "--port", port),
            cwd=self._work,
            env={**os.environ, "HOLDFAST_TITLES": "words"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().decode()
        found = re.search(r"serves (http://\S+) ", said)
        assert found is not None, said
        self.url = found[1]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def link(self) -> str:
        token = self._data / f"serve-{self.url.rpartition(':')[2]}.token"
        return f"{self.url}/#token={token.read_text().strip()}"


@contextlib.contextmanager
def served() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="holdfast-screenshots-") as folder:
        server = Server(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def opened(browser: Browser, server: Server, *, is_phone: bool = False) -> Page:
    context = browser.new_context(
        viewport=PHONE if is_phone else DESK,
        color_scheme="light",
        reduced_motion="reduce",
        has_touch=is_phone,
        is_mobile=is_phone,
        locale="en-GB",
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(server.link)
    return page


def photograph(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    page.wait_for_timeout(600)  # What was highlighted last is drawn a moment later.
    path = IMAGES / f"{name}.png"
    size = path.write_bytes(smaller(page.screenshot()))
    print(f"{path.name}: {size // 1000} kB")
    assert size <= MAX_BYTES, f"{path.name} is larger than {MAX_BYTES} bytes"


def say(page: Page, text: str) -> None:
    page.fill("#composer", text)
    page.press("#composer", "Enter")


def new_session(page: Page, text: str) -> None:
    page.click("button:has-text('New session')")
    page.click(f".suggestions button:has-text('{text}')")


def until_idle(page: Page) -> None:
    page.wait_for_selector(".end")
    page.wait_for_selector(".working", state="detached")


def conversation(page: Page) -> None:
    new_session(page, "Go step by step")
    page.wait_for_selector(".tool")
    say(page, "And mind the gap between the steps.")
    page.wait_for_selector("article[aria-label='Your follow-up']")
    say(page, "Tell me when you are done.")
    page.wait_for_selector(".chip")
    photograph(page, "conversation")
    until_idle(page)


def approval(page: Page) -> str:
    new_session(page, "Write a note")
    page.wait_for_selector(".request")
    page.wait_for_selector(".row-item.current .badge")
    photograph(page, "approval")
    return page.url.partition("#")[2]


def tasks(page: Page) -> None:
    new_session(page, "Build something")
    page.click("button:has-text('Allow once')")
    page.click("button:has-text('Follow it in the tasks panel')")
    page.wait_for_selector(".output:has-text('step 4')")
    photograph(page, "tasks")
    page.wait_for_selector(".task-line")
    until_idle(page)
    page.click("[aria-label='Close the tasks']")


def timeline(page: Page, server: Server) -> None:
    """A server that dies while it answers and a command runs, and what its successor makes of both."""
    new_session(page, "Build something")
    page.click("button:has-text('Allow once')")
    page.wait_for_selector(".markdown:has-text('The call came back')")
    place = page.url.partition("#")[2]
    server.kill()
    server.start()
    page.goto(server.link)
    page.goto(f"{server.url}/#{place}")
    page.wait_for_selector(".task-line")
    until_idle(page)
    page.click("button:has-text('Timeline')")
    page.wait_for_selector(".picture svg")
    photograph(page, "timeline")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with served() as server, sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = opened(browser, server)
        conversation(page)
        tasks(page)
        asked = approval(page)
        phone = opened(browser, server, is_phone=True)
        phone.wait_for_selector(".start")
        phone.goto(f"{server.url}/#{asked}")
        phone.wait_for_selector(".request")
        photograph(phone, "phone")
        timeline(page, server)
        browser.close()


if __name__ == "__main__":
    main()
