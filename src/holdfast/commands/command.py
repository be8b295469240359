"""The vocabulary shared by runtime and supervisor: a command's key, record, process and outcome."""

import hashlib
from typing import Final, Literal

import msgspec

MARK: Final = "HOLDFAST_COMMAND"
"""The environment variable that names a command in everything it starts. A process that leaves the command's session is
still found by it."""

Reason = Literal["exited", "killed", "time", "lost", "not_started"]
"""`time`: it reached its time limit. `lost`: no supervisor saw its end. `not_started`: it never ran, and never will."""

State = Literal["running", "unwatched", "ended"]
"""`unwatched`: it runs, but the supervisor that read its output died; its exit code can no longer be known."""

Stream = Literal["both", "stdout", "stderr"]


def session_name(owner: str, session: str) -> str:
    """A file name for a session: safe for any owner and id, and shared by no two sessions."""
    return _hashed((owner, session))


class CommandKey(msgspec.Struct, frozen=True, order=True):
    """Identifies a command; it is started at most once per key. The next attempt at the same call has another key."""

    owner: str
    session: str
    tool_call: str
    attempt: int

    @property
    def name(self) -> str:
        """A file name for the key: safe for any parts, and shared by no two keys."""
        return _hashed(self)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a command. Zero means unlimited, except for the output."""

    seconds: float = 1800.0
    """Applies to the command and to its known leftover processes."""
    output_bytes: int = 256 * 1024 * 1024
    """Output is kept whole up to here; beyond it, only the beginning and the end are kept."""
    memory_bytes: int = 0
    """Address space limit of each process."""
    processes: int = 0
    """The system counts processes per user, and never limits root."""
    file_bytes: int = 0
    """The largest file that the command may write."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run, with its directory, environment and limits."""

    command: str
    directory: str
    environment: dict[str, str] = {}
    """Variables added to the few that are let through. Never written to disk."""
    limits: Limits = Limits()
    merged: bool = False
    """Writes stdout and stderr to one pipe: their order is exact, but they can't be told apart."""
    inside: tuple[str, ...] = ()
    """A program and its arguments that run the shell, such as a sandbox."""
    filter: bytes = b""
    """The filter of system calls, as the kernel takes it, for `inside` and everything it starts; empty for none. A
    filtered `inside` has the directory open as `sandbox_entry.BOUND`. An earlier supervisor ignores this field, and a
    sandbox that lacks this descriptor runs nothing."""
    wrapper: str = ""
    """The program that stays around the shell, which `inside` is or becomes; empty if none stays."""
    shell: str = ""
    """The shell to use instead of bash, or of sh where there is no bash."""

    def __repr__(self) -> str:
        """Omits the values of variables: some are secrets, and errors and logs print this text."""
        return f"Spec(command={self.command!r}, directory={self.directory!r}, environment={sorted(self.environment)})"


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A command as recorded on disk. The command text is the only part that could hold a secret."""

    key: CommandKey
    command: str
    directory: str
    limits: Limits
    merged: bool
    at: float
    boot: str
    wrapper: str = ""
    """Name of the program that stays around the shell, as the system shows it; empty if none stays."""
    token: str = ""
    """Random, because another folder may use the same key. Empty in records of earlier versions."""
    home: str = ""
    """Identity of the commands folder (`identity_of`): a copy of the folder has another. Empty in records of earlier
    versions."""

    @property
    def mark(self) -> str:
        """The mark carried by every process of the command."""
        return self.token or self.key.name


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a command. Pids are reused: only pid, start time and boot together identify a process."""

    pid: int
    started: str
    boot: str


class ProcessInfo(msgspec.Struct, frozen=True):
    """A process that was found, with a name for people to read."""

    pid: int
    started: str
    name: str


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. Written once and never changed."""

    reason: Reason
    exit_code: int | None = None
    """128 plus the signal's number if a signal ended it; None if unknown."""
    at: float
    output_bytes: int = 0
    """Bytes written when it ended. Leftover processes may write more."""
    detail: str = ""
    left_behind: tuple[ProcessInfo, ...] = ()
    """Processes that still ran when the shell exited by itself."""
    killed: tuple[ProcessInfo, ...] = ()
    escaped: tuple[ProcessInfo, ...] = ()
    """After a kill: `killed` are the processes that ended, `escaped` those known to run on."""


class CommandStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a command."""

    record: CommandRecord = msgspec.field(name="asked")
    state: State
    runner: Runner | None = None
    outcome: CommandOutcome | None = None
    output_bytes: int = 0
    last_output_at: float = 0.0
    folder: str = ""

    @property
    def key(self) -> CommandKey:
        return self.record.key

    @property
    def output_file(self) -> str:
        """Path of a plain file that grows as the command writes."""
        return f"{self.folder}/output"


class KillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a kill. `escaped` is empty if every process that could be found is dead."""

    status: CommandStatus
    killed: tuple[ProcessInfo, ...] = ()
    escaped: tuple[ProcessInfo, ...] = ()


def _hashed(parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:40]
