"""A throw-away box in which real bash runs a command among stubs that record what they are started with.

With bubblewrap nothing outside the box can be written, and no network is there. Without it the box is a temporary
directory, and no program is on the path.
"""

import atexit
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

INSIDE: Final = Path(__file__).with_name("bash_inside.py")

INTERPRETER: Final = str(Path(sys.executable).resolve())
"""The interpreter itself, not the link to it in an environment: the box has its own /tmp, which may hide that."""

CONFINED: Final = (
    *("bwrap", "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"),
    *("--unshare-all", "--die-with-parent", "--chdir", "/tmp", "--setenv", "TMPDIR", "/tmp"),
)


class Ran(msgspec.Struct, frozen=True):
    """The effects of a command: the programs that it started, with their words, and the new files."""

    started: list[tuple[str, ...]]
    files: list[str]
    ended: bool


class BashBox:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*confinement(), INTERPRETER, "-I", "-c", INSIDE.read_text(encoding="utf-8")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str, *, status: int = 0, records_builtins: bool = False, locale: str = "C.UTF-8") -> Ran:
        """`status` is what each stub ends with. `records_builtins`: those of bash that take plain words are stubs."""
        asked = {"command": command, "status": status, "records_builtins": records_builtins, "locale": locale}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Ran)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def has_bash() -> bool:
    return shutil.which("bash") is not None


@cache
def confinement() -> tuple[str, ...]:
    works = shutil.which("bwrap") and subprocess.run([*CONFINED, "true"], capture_output=True).returncode == 0
    return CONFINED if works else ()


@cache
def box() -> BashBox:
    """One for the whole process."""
    made = BashBox()
    atexit.register(made.close)
    return made
