"""Runs inside the box: takes one command a line, runs it in bash among stubs, and tells what it did.

It stands alone: its text is given to a Python that sees nothing of this repository.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RECORDS = """
__record() { printf '%s\\0' "$#" "$@" >> "$BOX_LOG/$BASHPID"; return "$BOX_STATUS"; }
command_not_found_handle() { __record "$@"; }
"""
"""Any program that is not there is recorded in place of being run. Each process has a log of its own: bash writes words
with line breaks in pieces, and those of the commands of a pipeline would mix."""

RECORDS_BUILTINS = "".join(
    f'{name}() {{ __record {name} "$@"; }}\n'
    for name in (":", "cd", "echo", "false", "kill", "pwd", "test", "true", "type")
)

STUB = '#!{bash} -p\nprintf "%s\\0" "$(($# + 1))" "${{0##*/}}" "$@" >> "$BOX_LOG/$BASHPID"; exit "$BOX_STATUS"\n'
EVIL = "#!{bash} -p\n: > {work}/PWNED\n"

STUBS = ("cat", "git", "grep", "ls", "make", "npm", "wc")
"""Programs that are there, so that a shell can be told to replace itself with one."""


def run(asked: dict[str, Any], bash: str, place: Path) -> dict[str, Any]:
    work = place / "work"
    _fill(work, bash)
    (place / "log").mkdir()
    before = _files(work)
    environment = {
        "PATH": str(place / "programs"),
        "HOME": str(place / "home"),
        "BASH_ENV": str(place / ("start-with-builtins" if asked["records_builtins"] else "start")),
        "BOX_LOG": str(place / "log"),
        "BOX_STATUS": str(asked["status"]),
        "LC_ALL": asked["locale"],
    }
    ended = _until_silent([bash, "-c", asked["command"]], work, environment)
    told = {"started": _recorded(place / "log"), "files": sorted(_files(work) - before), "ended": ended}
    shutil.rmtree(work)
    shutil.rmtree(place / "log")
    return told


def _prepare(place: Path, bash: str) -> None:
    for folder in ("programs", "home"):
        (place / folder).mkdir()
    (place / "start").write_text(RECORDS)
    (place / "start-with-builtins").write_text(RECORDS + RECORDS_BUILTINS)
    for name in STUBS:
        _program(place / "programs" / name, STUB.format(bash=bash))


def _fill(work: Path, bash: str) -> None:
    """A working directory with scripts that no rule allows, and files that a shell could take for something else."""
    for folder in (work, work / "0", work / "docs"):
        folder.mkdir()
    for path in ("evil", "0/ls", "0/git"):
        _program(work / path, EVIL.format(bash=bash, work=work))
    for name in ("a", "b", "-rf"):
        (work / name).write_text(": > PWNED\n")


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _files(work: Path) -> set[str]:
    return {str(path.relative_to(work)) for path in work.rglob("*")}


def _until_silent(line: list[str], work: Path, environment: dict[str, str]) -> bool:
    """Whether it ended, with all that it left in the background, in time."""
    process = subprocess.Popen(
        line,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.communicate(timeout=10)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _recorded(log: Path) -> list[list[str]]:
    found = []
    for of_process in log.iterdir():
        words = of_process.read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]
        while words:
            count = int(words[0])
            found.append(words[1 : count + 1])
            words = words[count + 1 :]
    return found


def main() -> None:
    bash = str(shutil.which("bash"))
    with tempfile.TemporaryDirectory() as name:
        _prepare(Path(name), bash)
        for line in sys.stdin:
            print(json.dumps(run(json.loads(line), bash, Path(name))), flush=True)


if __name__ == "__main__":
    main()
