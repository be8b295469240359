"""The screen of a full terminal: text scrolls by above, and the line to type in stays at the bottom."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style as Styles
from prompt_toolkit.utils import get_cwidth

from holdfast.cli.escapes import visible
from holdfast.cli.line_flow import LineFlow
from holdfast.cli.pager import page
from holdfast.cli.screen import ScreenStatus, wants_color
from holdfast.cli.transcript import Piece, one_line, styled

ROWS_BESIDE = 8
"""Rows that a request must leave free, so that all of it is on the screen when it is answered."""
MIN_ROWS = 4

STYLES = {
    "prompt": "ansicyan bold",
    "queued": "nobold ansibrightblack",
    "rule": "nobold ansibrightblack",
}


class PromptScreen:
    """Prints each finished line once; redraws the unfinished one above the prompt."""

    interactive = True
    echoes = False

    def __init__(self) -> None:
        self._color = wants_color(is_terminal=True)
        self._flow = LineFlow(get_cwidth)
        self._status = ScreenStatus()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._interrupted: Callable[[], None] = lambda: None
        self._prompt: PromptSession[str] = PromptSession(
            message=self._message,
            key_bindings=self._keys(),
            style=Styles.from_dict(STYLES if self._color else {}),
            erase_when_done=True,
            # A terminal answers a query for its cursor among the typed keys; after a kill, the shell would read that.
            output=Vt100_Output.from_pty(sys.stdout, enable_bell=False),
            refresh_interval=1.0,
        )
        self._prompt.app.output.enable_cpr = False  # type: ignore[attr-defined]
        self._held: list[list[Piece]] | None = None
        """Lines that wait until the pager ends; None if none is open."""
        self._running: asyncio.Task[None] | None = None
        self._patched: AbstractContextManager[None] | None = None

    @property
    def _app(self) -> Application[str]:
        return self._prompt.app

    def start(self, interrupted: Callable[[], None]) -> None:
        self._interrupted = interrupted
        self._patched = patch_stdout(raw=True)
        self._patched.__enter__()
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._app.is_running:
            self._app.exit(result="")
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
        if self._patched is not None:
            self._patched.__exit__(None, None, None)
        self._print(self._flow.feed([Piece("text", "\n")], self._width) if self._flow.rest else [])

    async def next_line(self) -> str | None:
        return await self._lines.get()

    def show(self, pieces: list[Piece]) -> None:
        self._print(self._flow.feed(pieces, self._width))
        self._app.invalidate()

    def update(self, status: ScreenStatus) -> None:
        if status != self._status:
            self._status = status
            self._app.invalidate()

    def fits(self, lines: list[str]) -> bool:
        """Whether the lines fit, with room left for the first line of the request, the queue and the prompt."""
        rows = sum(max(1, -(-get_cwidth(line.expandtabs(4)) // self._width)) for line in lines)
        return rows <= max(self._app.output.get_size().rows - ROWS_BESIDE, MIN_ROWS)

    async def read_through(self, text: str) -> None:
        """Show a text in the pager; without one, above the prompt. Lines that come meanwhile are shown afterwards."""
        self._held = []
        try:
            async with in_terminal():
                was_shown = await page(text)
        finally:
            held, self._held = self._held, None
        if not was_shown:
            self.show([Piece("note", text)])
        self._print(held)

    def give_back(self, text: str) -> bool:
        buffer = self._prompt.default_buffer
        if buffer.text:
            return False
        buffer.text = text
        buffer.cursor_position = len(text)
        return True

    async def _run(self) -> None:
        try:
            await self._prompt.prompt_async(set_exception_handler=False)
        except (EOFError, KeyboardInterrupt):
            pass
        finally:
            self._lines.put_nowait(None)

    # Drawing

    @property
    def _width(self) -> int:
        return max(self._app.output.get_size().columns - 1, 20)

    def _print(self, lines: list[list[Piece]]) -> None:
        """Write to the terminal in one go with the erasing of the prompt, so that nothing comes between."""
        if not lines:
            return
        if self._held is not None:
            self._held += lines
            return
        text = "".join("".join(styled(piece, color=self._color) for piece in line) + "\r\n" for line in lines)
        if self._app.is_running:
            self._app.renderer.erase()
        self._app.output.write_raw(text)
        self._app.output.flush()

    def _message(self) -> StyleAndTextTuples:
        drawn: StyleAndTextTuples = []
        if self._flow.rest:
            line = "".join(styled(piece, color=self._color) for piece in self._flow.rest)
            drawn += [*to_formatted_text(ANSI(line)), ("", "\n")]
        drawn.append(("class:rule", f"\n{self._rule()}\n"))
        for text in self._status.queued:
            drawn.append(("class:queued", f"  queued: {one_line(text, self._width - 12)}\n"))
        drawn.append(("class:prompt", self._status.prompt))
        return drawn

    def _rule(self) -> str:
        """The line above the prompt, with the state on its left, the model and the session on its right."""
        state, about = visible(self._status.state), visible(self._status.about)
        room = self._width - get_cwidth(state) - get_cwidth(about) - len("──   ──")
        if room > 0:
            return f"── {state} {'─' * room} {about} ──"
        # A narrow terminal has room for the state alone, or for its beginning.
        words = f"── {state} "
        return (
            words + "─" * (self._width - get_cwidth(words)) if get_cwidth(words) < self._width else words[: self._width]
        )

    # Keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def accept(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            text = buffer.text
            buffer.append_to_history()
            buffer.reset()
            self._lines.put_nowait(text)

        @keys.add("escape", "enter")
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add(Keys.SIGINT)
        def interrupt(event: KeyPressEvent) -> None:
            if self._held is not None:
                return  # the key was meant for the pager
            if event.current_buffer.text and not self._status.busy:
                event.current_buffer.reset()
            else:
                self._interrupted()

        @keys.add("c-b", filter=Condition(lambda: self._status.runs_command))
        def background(event: KeyPressEvent) -> None:
            self._lines.put_nowait("/background")

        @keys.add("c-d")
        def leave(event: KeyPressEvent) -> None:
            if not event.current_buffer.text:
                event.app.exit(result="")

        return keys
