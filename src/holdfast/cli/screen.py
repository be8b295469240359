"""The screen of a chat: the protocol, and the plain lines for pipes and simple terminals."""

import asyncio
import codecs
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from holdfast.cli.transcript import Piece, print_pieces

READ_BYTES: Final = 65_536


class ScreenStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status that a screen may show beside the conversation."""

    prompt: str = "> "
    state: str = ""
    about: str = ""
    queued: tuple[str, ...] = ()
    busy: bool = False
    runs_command: bool = False
    """The turn waits for a command, which could be moved to the background."""


class Screen(Protocol):
    """Shows text and returns typed lines from `next_line`, None at the end. Calls `interrupted` at each Ctrl-C."""

    interactive: bool
    """A person can answer requests here."""
    echoes: bool
    """The terminal itself shows the lines as they are typed."""

    async def next_line(self) -> str | None: ...

    def show(self, pieces: list[Piece]) -> None: ...

    def update(self, status: ScreenStatus) -> None: ...

    def fits(self, lines: list[str]) -> bool:
        """Whether these lines can be seen at once, or are to be shown in full anyway."""

    async def read_through(self, text: str) -> None:
        """Show all of a text that does not fit. On return it was shown."""

    def give_back(self, text: str) -> bool:
        """Put a text back into the line to type in. False if there is no such line, or it is not empty."""

    def start(self, interrupted: Callable[[], None]) -> None: ...

    async def close(self) -> None: ...


def wants_color(*, is_terminal: bool) -> bool:
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


class PlainScreen:
    """Reads lines and prints text. Never moves the cursor or erases anything."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        self.echoes = self.interactive
        self._color = wants_color(is_terminal=sys.stdout.isatty())
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._prompt = ""

    def start(self, interrupted: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupted)
        # A thread, because the event loop can't wait for a file; a daemon, because its read can't be interrupted.
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()

    async def next_line(self) -> str | None:
        return await self._lines.get()

    def show(self, pieces: list[Piece]) -> None:
        print_pieces(pieces, color=self._color)

    def update(self, status: ScreenStatus) -> None:
        pass

    def fits(self, lines: list[str]) -> bool:
        return True

    async def read_through(self, text: str) -> None:
        self.show([Piece("note", text)])

    def give_back(self, text: str) -> bool:
        return False

    async def close(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read with the system call: Python's buffer would hold a lock that the exit of the process waits for."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        while data := _read_some():
            *lines, rest = (rest + decoder.decode(data)).split("\n")
            for line in lines:
                self._put(loop, line)
        if rest:
            self._put(loop, rest)
        self._put(loop, None)

    def _put(self, loop: asyncio.AbstractEventLoop, line: str | None) -> None:
        try:
            loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:
            pass  # the loop has ended, and no one reads the line any more


def _read_some() -> bytes:
    try:
        return os.read(sys.stdin.fileno(), READ_BYTES)
    except OSError:
        return b""
