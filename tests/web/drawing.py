"""The page's markdown in a real browser, as something to call: text in pieces, and which elements it was drawn with."""

import asyncio
import atexit
import functools
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.web import chromium
from tests.web.sources import NODE, ROOT, copied, packages, run

PACKAGES = ROOT / ".pytest_cache" / "d" / "page-packages"

Element = tuple[str, dict[str, str]]
"""Its name, and its attributes."""

Job = tuple["Future[Any]", Callable[[], Any]]


@functools.cache
def drawing() -> "Drawing":
    """One for the process."""
    made = Drawing()
    atexit.register(made.close)
    return made


class Drawing:
    """Everything runs in one thread, which the browser's driver is bound to: the caller may have an event loop."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._open = ExitStack()
        self._thread = threading.Thread(target=self._work, name="drawing", daemon=True)
        self._thread.start()
        self._page: Page = self._done(self._opened)

    def drawn(self, pieces: Sequence[str]) -> tuple[list[Element], int]:
        """The elements that a text in these pieces is rendered with, and how often a script of it ran."""
        elements, hurts = self._done(lambda: self._page.evaluate("(pieces) => [drawn(pieces), hurts]", list(pieces)))
        return [(name, dict(attributes)) for name, attributes in elements], hurts

    def close(self) -> None:
        self._done(self._open.close)
        self._jobs.put(None)
        self._thread.join()

    def _done(self, work: Callable[[], Any]) -> Any:
        outcome: Future[Any] = Future()
        self._jobs.put((outcome, work))
        return outcome.result()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            outcome, work = job
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

    def _opened(self) -> Page:
        script = asyncio.run(_script())
        profile = self._open.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        address = self._open.enter_context(chromium.running(chromium.found_or_installed(print), Path(profile)))
        playwright = self._open.enter_context(sync_playwright())
        page = playwright.chromium.connect_over_cdp(address).new_page()
        page.add_script_tag(content=script)
        page.evaluate("ready")
        return page


async def _script() -> str:
    PACKAGES.mkdir(parents=True, exist_ok=True)
    with copied(await packages(PACKAGES)) as folder:
        code, said = await run(NODE, "test/build_drawing.mjs", "drawing.js", cwd=folder)
        assert code == 0, said
        return (folder / "drawing.js").read_text(encoding="utf-8")
