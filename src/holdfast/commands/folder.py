"""The folder of one command, below that of its session. Each of its records is written whole or not at all.

keys/SESSION/KEY/

asked.json     the record; the folder gets its name with this file already in it\nrunner.json    written before the
command's first instruction: without it, the command never ran\noutput…        the command's output (see
output.py)\noutcome.json   written once the command has ended
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from holdfast.commands.command import CommandKey, CommandOutcome, CommandRecord, Runner, session_name

Stored = TypeVar("Stored", CommandRecord, Runner, CommandOutcome)

KEYS: Final = "keys"
ASIDE: Final = "."
"""Prefix of unfinished files and folders: a crash left them, and they mean nothing."""


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes, *, durable: bool) -> None:
    """Writes a file atomically. A crash before the rename leaves a temporary file that nothing reads; a crash after it
    leaves the whole record. `durable`: the same holds after a power loss."""
    aside = path.with_name(ASIDE + path.name)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.rename(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def identity_of(path: Path) -> str:
    """Returns device and inode, which tell a folder from a copy and from a replacement. A moved folder keeps its
    identity."""
    status = os.stat(path)
    return f"{status.st_dev}:{status.st_ino}"


def session_folder(root: Path, owner: str, session: str) -> Path:
    return root / KEYS / session_name(owner, session)


class CommandFolder:
    """Reads and writes the records of one command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, root: Path, key: CommandKey) -> "CommandFolder":
        return cls(session_folder(root, key.owner, key.session) / key.name)

    def is_still(self, identity: str) -> bool:
        """Returns False if the folder was removed or replaced. A folder that can't be read may come back, so it counts
        as present."""
        try:
            return identity_of(self.path) == identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def create(self, record: CommandRecord) -> bool:
        """Takes the key; returns False if it is taken. A rename can't replace a non-empty folder, so exactly one of any
        number of contenders wins. A crash before the rename leaves no key, and nothing was started; a crash after it
        leaves a key without a runner, under which nothing was started and nothing will be."""
        aside = self.path.with_name(f"{ASIDE}{self.path.name}.{os.getpid()}")
        _make_session_folder(self.path.parent)
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(mode=0o700)
            write_whole(aside / "asked.json", msgspec.json.encode(record), durable=True)
            os.rename(aside, self.path)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            if self.path.exists():
                return False
            _remove_if_empty(self.path.parent)
            raise
        sync_directory(self.path.parent)
        return True

    def record(self) -> CommandRecord | None:
        return self._read("asked.json", CommandRecord)

    def runner(self) -> Runner | None:
        return self._read("runner.json", Runner)

    def outcome(self) -> CommandOutcome | None:
        return self._read("outcome.json", CommandOutcome)

    def write_runner(self, runner: Runner) -> None:
        """Records the process. A crash before this: the command, which waits for the supervisor, ends unstarted. After
        it: the command may have run. A power loss is harmless: a key from before a reboot is never taken for one that
        did not run."""
        write_whole(self.path / "runner.json", msgspec.json.encode(runner), durable=False)

    def write_outcome(self, outcome: CommandOutcome) -> None:
        """Records the outcome. A crash before this loses the exit code, and the command counts as lost; after it, the
        outcome is final."""
        write_whole(self.path / "outcome.json", msgspec.json.encode(outcome), durable=True)

    def _read(self, name: str, kind: type[Stored]) -> Stored | None:
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove_output(self) -> None:
        """Removes the output and keeps the outcome: a late caller must not see the key as unused."""
        for file in self.path.glob("output*"):
            file.unlink(missing_ok=True)

    def remove(self) -> None:
        _remove_whole(self.path)
        _remove_if_empty(self.path.parent)


def _make_session_folder(path: Path) -> None:
    """Creates a session's folder. A crash after this leaves an empty folder, which means nothing and which the next
    supervisor removes. An existing folder was synced: by this process, or by the next supervisor when it started."""
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        return
    try:
        sync_directory(path.parent)
    except OSError:
        _remove_if_empty(path)
        raise


def _remove_whole(path: Path) -> None:
    """Removes a folder. A crash before the rename leaves all of it; after it, only a temporary folder that the next
    supervisor removes."""
    gone = path.with_name(f"{ASIDE}{path.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _remove_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def remove_session(path: Path) -> None:
    """Removes a session's folder with everything in it, all or nothing. The removal is durable when this returns."""
    with contextlib.suppress(FileNotFoundError):
        _remove_whole(path)
    sync_directory(path.parent)


def folders(root: Path) -> list[CommandFolder]:
    return [folder for session in _below(root / KEYS) for folder in folders_of(session)]


def folders_of(session: Path) -> list[CommandFolder]:
    return [CommandFolder(path) for path in _below(session)]


def _below(path: Path) -> list[Path]:
    """Returns the finished entries of a folder. A path that is no folder, or can't be read, counts as empty: before
    sessions had folders, the folders of commands were here."""
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if not entry.name.startswith(ASIDE)]
    except OSError:
        return []


def remove_unfinished(root: Path) -> None:
    """Removes what crashes left unfinished. Only the supervisor calls this, and only the supervisor creates folders, so
    nothing is at work on them."""
    for session in (root / KEYS, *_below(root / KEYS)):
        for path in session.glob(ASIDE + "*"):
            shutil.rmtree(path, ignore_errors=True)
    for session in _below(root / KEYS):
        _remove_if_empty(session)
    sync_directory(root / KEYS)
