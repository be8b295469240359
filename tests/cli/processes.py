"""Real processes of the command line: run to their end, talked to through pipes, or sat before a real terminal."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

SECONDS = 60.0
"""Nothing that a test waits for takes longer, or it does not come."""

COLUMNS, ROWS = 100, 40

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>78]")


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Place:
    """A database and a working directory of a test's own, and the commands on them."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)
        source = str(Path(__file__).parents[2] / "src")
        # Whoever runs the tests may have said how wide their own terminal is.
        self.environ = {**os.environ, "PYTHONPATH": source, "PYTHONUTF8": "1", "COLUMNS": "120"}
        self.options: tuple[str, ...] = ()
        """Given to every command that knows models."""

    def command(self, *words: str) -> list[str]:
        takes_model = words[0] in ("chat", "run", "approve", "deny", "answer", "doctor")
        more = self.options if takes_model or words[:2] in (("sessions", "compact"), ("sessions", "continue")) else ()
        return [sys.executable, "-m", "holdfast", *words, "--data-dir", str(self.data), *more]

    async def run(self, *words: str, typed: str | bytes = b"", **environ: str) -> Done:
        """A command from its start to its end."""
        child = await self.start(*words, **environ)
        async with asyncio.timeout(SECONDS):
            out, err = await child.communicate(typed.encode() if isinstance(typed, str) else typed)
        assert child.returncode is not None
        return Done(child.returncode, out.decode(), err.decode())

    async def start(self, *words: str, **environ: str) -> Process:
        return await asyncio.create_subprocess_exec(
            *self.command(*words), cwd=self.work, env={**self.environ, **environ}, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )

    @contextlib.asynccontextmanager
    async def piped(self, *words: str) -> AsyncIterator["Piped"]:
        child = await asyncio.create_subprocess_exec(
            *self.command(*words), cwd=self.work, env=self.environ, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        try:
            yield Piped(child)
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()

    def terminal(self, *words: str, term: str = "xterm-256color", **environ: str) -> "Terminal":
        settings = {**self.environ, "TERM": term, "COLUMNS": str(COLUMNS), "LINES": str(ROWS), **environ}
        return Terminal(self.command(*words), self.work, settings)


class Piped:
    """A process whose lines we write and read."""

    def __init__(self, child: Process) -> None:
        self._child = child
        self.said = ""

    def type(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n".encode())

    def end_of_input(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()

    async def until(self, text: str) -> str:
        assert self._child.stdout is not None
        async with asyncio.timeout(SECONDS):
            while text not in self.said:
                data = await self._child.stdout.read(65536)
                assert data, f"it ended without saying {text!r}: {self.said}"
                self.said += data.decode()
        return self.said

    def terminate(self) -> None:
        self._child.terminate()

    async def kill(self) -> str:
        """SIGKILL; all that it ever said."""
        self._child.kill()
        return await self.ended(-signal.SIGKILL)

    async def ended(self, code: int = 0) -> str:
        assert self._child.stdout is not None
        async with asyncio.timeout(SECONDS):
            while data := await self._child.stdout.read(65536):
                self.said += data.decode()
            assert await self._child.wait() == code, self.said
        return self.said


class Terminal:
    """A process that has a terminal of its own, and us as the person before it."""

    def __init__(self, command: list[str], folder: Path, environ: dict[str, str]) -> None:
        self._command = command
        self._folder = folder
        self._environ = environ
        self._came = asyncio.Event()
        self.raw = ""

    async def __aenter__(self) -> Self:
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.child = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._folder,
            env=self._environ,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            # The terminal becomes the one that Ctrl-C is typed at.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inner)
        asyncio.get_running_loop().add_reader(self._fd, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        if self.child.returncode is None:
            self.child.kill()
            await self.child.wait()
        os.close(self._fd)

    @property
    def text(self) -> str:
        """All that was ever drawn, without the codes that moved and coloured it."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    async def until(self, text: str, *, times: int = 1, after: str = "") -> str:
        """Wait until a text was drawn so often, counted behind the last place of `after`."""
        async with asyncio.timeout(SECONDS):
            while self._drawn(after).count(text) < times:
                self._came.clear()
                try:
                    await self._came.wait()
                except asyncio.CancelledError:
                    raise AssertionError(f"{text!r} did not come ({times} times): {self.text[-3000:]}") from None
        return self.text

    def _drawn(self, after: str) -> str:
        return self.text.rpartition(after)[2] if after else self.text

    async def ended(self) -> int:
        async with asyncio.timeout(SECONDS):
            return await self.child.wait()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            data = b""  # the other side is closed
        if not data:
            asyncio.get_running_loop().remove_reader(self._fd)
        self.raw += data.decode(errors="replace")
        self._came.set()
