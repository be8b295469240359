"""Debian's Chromium: found, installed where that is possible, and run once for a test process.

Tests are connected to it over its own protocol, each file of them anew: so no test outside of this folder shares an
event loop with a browser's driver.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

NAMES = ("chromium", "chromium-browser", "google-chrome")

INSTALL_SECONDS = 300.0

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)


class NoChromium(Exception):
    """There is none, and none can be installed here."""


def found() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


def found_or_installed(say: Callable[[str], None]) -> str:
    """The browser's path. As root on Debian a missing one is installed; test processes do so one after the other."""
    if (path := found()) is not None:
        return path
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoChromium("no chromium is installed")
    with (Path(tempfile.gettempdir()) / "holdfast-tests-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path := found()) is None:
            say(f"Installing chromium for the tests of the page (once, at most {INSTALL_SECONDS:.0f} s) …")
            _install()
            path = found()
    if path is None:
        raise NoChromium("chromium is missing, and could not be installed")
    return path


def _install() -> None:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (("update", "-qq"), ("install", "-y", "-qq", "--no-install-recommends", "chromium")):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ("apt-get", *words), env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_SECONDS
            )


@contextlib.contextmanager
def running(path: str, profile: Path) -> Iterator[str]:
    """A browser with a profile of its own; where it can be driven from."""
    process = subprocess.Popen(
        (path, *FLAGS, f"--user-data-dir={profile}", "about:blank"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    rest = threading.Thread(target=deque, args=(process.stderr, 0))  # Nobody reads it, and it must not fill up.
    try:
        address = _address(process.stderr)
        rest.start()
        yield address
    finally:
        process.kill()
        process.wait()
        if rest.ident is not None:
            rest.join()
        process.stderr.close()


def _address(said: IO[bytes]) -> str:
    heard = []
    for line in said:
        if (match := re.search(rb"DevTools listening on (ws://\S+)", line)) is not None:
            return match[1].decode()
        heard.append(line)
    raise AssertionError(b"".join(heard).decode(errors="replace"))


def main() -> None:
    """Look for the browser, or install it. `make test` runs this before the test processes start, so that none of them
    finds a browser half installed. Without one the tests of the page are skipped, and the summary says so."""
    try:
        print(f"Browser for the tests of the page: {found_or_installed(print)}", flush=True)
    except NoChromium as missing:
        print(f"NOT TESTED: the page in a browser: {missing}", flush=True)


if __name__ == "__main__":
    main()
