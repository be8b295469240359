"""The folder of one command, below that of its session: its records, each written whole or not at all.

keys/SESSION/KEY/

asked.json     there from the first moment: the folder gets its name with this file in it
runner.json    there before the command's first instruction: without it, it never ran
output…        what it wrote (see output.py)
outcome.json   there once it has ended
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from holdfast.commands.command import CommandKey, CommandOutcome, CommandRecord, Runner, session_name

Record = TypeVar("Record", CommandRecord, Runner, CommandOutcome)

KEYS: Final = "keys"
ASIDE: Final = "."
"""Names that begin so are not finished: a crash left them, and they mean nothing."""


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes, *, durable: bool) -> None:
    """A crash before the rename leaves a file aside that nobody reads; after it, the whole record. `durable`: the same
    holds if the machine loses its power."""
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
    """Tells a folder from a copy of it, and from one that was put in its place. It may be moved."""
    found = os.stat(path)
    return f"{found.st_dev}:{found.st_ino}"


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
        """False if it was removed, or is another one by now. One that can't be looked at may come back."""
        try:
            return identity_of(self.path) == identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def create(self, record: CommandRecord) -> bool:
        """Take the key: False if somebody has it. A folder that is not empty can't be replaced by a rename, so that one
        of any number of contenders wins. A crash before the rename leaves no key, and the command has not been started;
        after it, a key without a runner, under which nothing was started and nothing will be."""
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
        """A crash before it: the command, which waits for us, ends unstarted. After it: it may have run. Power lost is
        no matter: a key of an earlier start of the machine is not taken for one that never ran."""
        write_whole(self.path / "runner.json", msgspec.json.encode(runner), durable=False)

    def write_outcome(self, outcome: CommandOutcome) -> None:
        """A crash before it loses the exit code, and the command counts as lost; after it, it is never asked again."""
        write_whole(self.path / "outcome.json", msgspec.json.encode(outcome), durable=True)

    def _read(self, name: str, kind: type[Record]) -> Record | None:
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove_output(self) -> None:
        """What remains is how it ended: the key must not look unused to somebody who comes back late."""
        for file in self.path.glob("output*"):
            file.unlink(missing_ok=True)

    def remove(self) -> None:
        _remove_whole(self.path)
        _remove_if_empty(self.path.parent)


def _make_session_folder(path: Path) -> None:
    """A crash after it leaves an empty folder, which means nothing and which the next supervisor removes. One that is
    there was synced: by us, or by the next supervisor at its start."""
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
    """A crash before the rename leaves all of it, after it nothing that counts: what lies aside is removed by the next
    supervisor."""
    gone = path.with_name(f"{ASIDE}{path.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _remove_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def remove_session(path: Path) -> None:
    """The folder of a session, with all that is in it: all or nothing, and gone for good when it returns."""
    with contextlib.suppress(FileNotFoundError):
        _remove_whole(path)
    sync_directory(path.parent)


def folders(root: Path) -> list[CommandFolder]:
    return [folder for session in _below(root / KEYS) for folder in folders_of(session)]


def folders_of(session: Path) -> list[CommandFolder]:
    return [CommandFolder(path) for path in _below(session)]


def _below(path: Path) -> list[Path]:
    """What is finished in a folder. What is none, or can't be read, is not ours and as good as empty: before sessions
    had folders, a command's own were here."""
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if not entry.name.startswith(ASIDE)]
    except OSError:
        return []


def remove_unfinished(root: Path) -> None:
    """What crashes left aside. Only the supervisor calls it, and only it creates: nobody is at work on these."""
    for session in (root / KEYS, *_below(root / KEYS)):
        for path in session.glob(ASIDE + "*"):
            shutil.rmtree(path, ignore_errors=True)
    for session in _below(root / KEYS):
        _remove_if_empty(session)
    sync_directory(root / KEYS)
