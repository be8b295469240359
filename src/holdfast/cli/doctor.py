"""`holdfast doctor`: checks everything that Holdfast needs, and says how to fix what is wrong."""

import asyncio
import contextlib
import os
import platform
import sqlite3
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from holdfast.app import Runtime, isolation_of
from holdfast.cli.doctor_finding import Finding
from holdfast.cli.errors import explained
from holdfast.cli.escapes import visible
from holdfast.cli.screen import wants_color
from holdfast.cli.tokens import examine_tokens
from holdfast.cli.transcript import Piece, styled
from holdfast.commands.errors import IsolationUnavailable
from holdfast.config import Config
from holdfast.store.file_access import access_fault, database_files
from holdfast.store.sqlite.connections import connect
from holdfast.store.sqlite.filesystem import NETWORK, kind_of
from holdfast.store.sqlite.liveness import Liveness
from holdfast.store.sqlite.store import OLDEST_SQLITE, has_text_search

OLDEST_PYTHON: Final = (3, 11)


async def examine(config: Config, *, as_json: bool) -> int:
    """Print the result of every check and return the exit status: 1 if one failed."""
    checks = {name: check for name, check in CHECKS.items() if not (config.is_postgres and name in FILE_CHECKS)}
    findings = [await _checked(name, config, check) for name, check in checks.items()]
    color = wants_color(is_terminal=sys.stdout.isatty())
    for finding in findings:
        print(msgspec.json.encode(finding).decode() if as_json else _line(finding, color=color))
    return 0 if all(finding.ok for finding in findings) else 1


async def _checked(name: str, config: Config, check: Callable[[Config], Awaitable[Finding]]) -> Finding:
    try:
        return await check(config)
    except Exception as error:
        refusal = explained(error)
        why = refusal.message if refusal else f"{type(error).__name__}: {error}"
        return Finding(name=name, ok=False, found=why)


def _line(finding: Finding, *, color: bool) -> str:
    mark = styled(Piece("good", "✓") if finding.ok else Piece("bad", "✗"), color=color)
    advice = f" {finding.advice}" if finding.advice and not finding.ok else ""
    return f"{mark} {finding.name}: {visible(finding.found)}{advice}"


async def _python(config: Config) -> Finding:
    return Finding(
        name="Python",
        ok=sys.version_info >= OLDEST_PYTHON,
        found=f"{platform.python_version()} on {platform.system()}",
        advice="Use Python 3.11 or newer.",
    )


async def _sqlite(config: Config) -> Finding:
    return Finding(
        name="SQLite",
        ok=sqlite3.sqlite_version_info >= OLDEST_SQLITE and has_text_search(),
        found=sqlite3.sqlite_version if has_text_search() else f"{sqlite3.sqlite_version} without FTS5",
        advice="Use a Python with SQLite 3.35 or newer, built with FTS5.",
    )


async def _data_dir(config: Config) -> Finding:
    """The folder and its files hold every session and the token of a local server: only their user may read them."""
    folder = config.data_dir if config.is_postgres else config.database_path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = [] if config.is_postgres else database_files(config.database_path)
    faults = [fault for path in (folder, *files) if (fault := access_fault(path)) is not None]
    mode = stat.S_IMODE(folder.stat().st_mode)
    found = "".join(f", {fault.what}" for fault in faults)
    advice = " && ".join(fault.command for fault in faults)
    return Finding(
        name="Folder",
        ok=not faults,
        found=f"{folder} (mode {mode:o}){found}",
        advice=f"Run: {advice}" if faults else "",
    )


async def _file_system(config: Config) -> Finding:
    kind = _kind_of_file_system(config.database_path)
    advice = "Put the database on a local disk: --data-dir."
    return Finding(name="File system", ok=kind not in NETWORK, found=kind or "unknown", advice=advice)


def _kind_of_file_system(path: Path) -> str | None:
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return None  # this system has no such file
    return kind_of(path.resolve(), mounts)


async def _database(config: Config) -> Finding:
    async with Runtime(config=_without_model(config), work=False, role="command") as runtime:
        count = len((await runtime.operations.sessions(runtime.owner, limit=200)).rows)
    many = f"{count}{'+' if count == 200 else ''}"
    return Finding(name="Database", ok=True, found=f"{config.database_shown} opens (sessions: {many})")


def _without_model(config: Config) -> Config:
    """The settings of a runtime that needs no usable model."""
    return msgspec.structs.replace(config, model="demo", model_fallback=None)


async def _integrity(config: Config) -> Finding:
    result = await asyncio.to_thread(_quick_check, config.database_path)
    return Finding(
        name="Integrity", ok=result == "ok", found=result, advice="Restore a backup (made with `holdfast db backup`)."
    )


def _quick_check(path: Path) -> str:
    with contextlib.closing(connect(path, read_only=True)) as db:
        return "; ".join(str(row[0]) for row in db.execute("PRAGMA quick_check").fetchmany(5))


async def _locks(config: Config) -> Finding:
    """A lock must exclude other processes while its own lives, and be free when that has ended."""
    folder = config.database_path.resolve()
    own, other = Liveness(folder), Liveness(folder)
    own.begin()
    try:
        held = not other.is_dead(own.token)
    finally:
        own.end()
    alive = [token for token in other.left_behind() if not other.is_dead(token)]
    return Finding(
        name="Locks",
        ok=held and other.is_dead(own.token),
        found=f"work ({len(alive)} other process{'' if len(alive) == 1 else 'es'} on this database)"
        if held
        else "don't keep others out",
        advice="Put the database on a local disk: --data-dir.",
    )


async def _redis(config: Config) -> Finding:
    """Whether Redis answers. Without Redis, hints go through the database, which is slower on many machines."""
    if config.redis is None:
        needed = "hints between machines are faster with it" if config.is_postgres else "one machine needs none"
        return Finding(name="Redis", ok=True, found=f"not set ({needed})")
    async with Runtime(config=_without_model(config), work=False, role="command") as runtime:
        is_up = await runtime.redis_answers()
    advice = "Check HOLDFAST_REDIS, and that it runs. Until then hints go through the database."
    return Finding(name="Redis", ok=is_up, found="answers" if is_up else "does not answer", advice=advice)


async def _sandbox(config: Config) -> Finding:
    """Whether a sandbox works here. It is checked even if none is set; then a failure is no fault."""
    wanted = config.sandbox != "none"
    isolation = isolation_of(msgspec.structs.replace(config, sandbox="bubblewrap"), os.environ)
    off = "" if wanted else "off, so that commands can reach the database. "
    try:
        await isolation.check()
    except IsolationUnavailable as error:
        return Finding(name="Sandbox", ok=not wanted, found=off + error.message)
    how = f"network {config.sandbox_network}" if wanted else "turn it on with --sandbox"
    return Finding(name="Sandbox", ok=True, found=f"{off}{isolation.name} works here ({how})")


async def _model(config: Config) -> Finding:
    """Whether the model, and that for its failures, answer a tiny call."""
    if config.model == "demo" and config.model_fallback is None:
        return Finding(name="Model", ok=True, found="demo (built in)")
    from holdfast.cli.model_check import check_model  # deferred: HTTP takes a while to import

    found = await check_model(config, config.model)
    if not found.ok or config.model_fallback is None:
        return found
    fallback = await check_model(config, config.model_fallback)
    return Finding(
        name="Model", ok=fallback.ok, found=f"{found.found}; fall-back {fallback.found}", advice=fallback.advice
    )


FILE_CHECKS: Final = frozenset({"SQLite", "File system", "Integrity", "Locks"})
"""Checks of a database that is a file."""

CHECKS: Final[dict[str, Callable[[Config], Awaitable[Finding]]]] = {
    "Python": _python,
    "SQLite": _sqlite,
    "Folder": _data_dir,
    "File system": _file_system,
    "Database": _database,
    "Integrity": _integrity,
    "Locks": _locks,
    "Redis": _redis,
    "Tokens": examine_tokens,
    "Sandbox": _sandbox,
    "Model": _model,
}
