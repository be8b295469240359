"""Backs up a database on PostgreSQL with `pg_dump`. The file gets its name only once it is complete and on disk. No
password appears on a command line."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from holdfast.store.errors import StoreUnavailable, StoreUnusable

PROGRAM: Final = "pg_dump"
SAY_SECONDS: Final = 2.0
MAX_SAID_CHARACTERS: Final = 500

NOT_HERE: Final = (
    "pg_dump was not found. Install PostgreSQL's client programs, of the server's version or a newer one, or run this "
    "where they are: pg_dump --format=custom --schema=holdfast --file=FILE DATABASE-URL. A snapshot of the server's "
    "disk, or an archive of its write-ahead log, is as good."
)


async def dump(url: str, target: Path, *, so_far: Callable[[int], None]) -> None:
    """Write all of Holdfast's tables to a file that pg_restore reads. `so_far` is called with the file's size every
    `SAY_SECONDS`.

    Raises `FileExistsError` instead of overwriting a file."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise StoreUnusable("store_backed_up_elsewhere", NOT_HERE)
    partial = _begun(target)
    try:
        await _run(program, url, partial, so_far)
        _named(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _begun(target: Path) -> Path:
    """An empty file beside the target that only this user can read. A crash leaves this file, and no backup."""
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists already. Name a file that does not exist.")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    return partial


def _named(partial: Path, target: Path) -> None:
    """Give the file its name, and sync the folder. pg_dump has synced the file itself."""
    os.link(partial, target)
    descriptor = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(file: Path) -> int:
    return file.stat().st_size


async def _run(program: str, url: str, partial: Path, so_far: Callable[[int], None]) -> None:
    shown, secrets = without_secrets(url)
    words = ("--format=custom", "--schema=holdfast", "--no-password", f"--file={partial}", f"--dbname={shown}")
    child = await asyncio.create_subprocess_exec(
        program,
        *words,
        env={**os.environ, "PGAPPNAME": "holdfast", **secrets},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    running = asyncio.create_task(child.communicate())
    try:
        while not (await asyncio.wait((running,), timeout=SAY_SECONDS))[0]:
            so_far(_size(partial))
    finally:
        if child.returncode is None:
            child.kill()
        _, errors = await running
    if child.returncode != 0:
        message = " ".join(errors.decode("utf-8", "replace").split())[:MAX_SAID_CHARACTERS]
        raise StoreUnavailable("store_failed", f"pg_dump failed, and no backup was made. It said: {message}")


def without_secrets(url: str) -> tuple[str, dict[str, str]]:
    """The URL without its password, fit for a command line, and the password as an environment variable."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = {name: value for name, value in query if name == "password"}
    credentials, at, place = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    password = unquote(password) or given.get("password", "")
    left = urlencode([(name, value) for name, value in query if name != "password"], quote_via=quote)
    shown = urlunsplit(parts._replace(netloc=f"{user}{at}{place}", query=left))
    return shown, {"PGPASSWORD": password} if password else {}
