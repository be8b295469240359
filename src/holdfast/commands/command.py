"""What a command is, in the words that both sides use: its key, what was asked, who runs it, how it ended."""

import hashlib
from typing import Final, Literal

import msgspec

MARK: Final = "HOLDFAST_COMMAND"
"""The variable that names a command to everything that it starts: who leaves its session is still found by it."""

Reason = Literal["exited", "killed", "time", "lost", "not_started"]
"""`time`: the ceiling was met. `lost`: nobody saw its end. `not_started`: it never ran, and never will."""

State = Literal["running", "unwatched", "ended"]
"""`unwatched`: it runs, but the supervisor that read its output died; its exit code can't be known any more."""

Stream = Literal["both", "stdout", "stderr"]


def session_name(owner: str, session: str) -> str:
    """Safe for a file name, whatever the parts are; no two sessions share one."""
    return _hashed((owner, session))


class CommandKey(msgspec.Struct, frozen=True, order=True):
    """What a command starts under, at most once. The next attempt at the same call is another key."""

    owner: str
    session: str
    tool_call: str
    attempt: int

    @property
    def name(self) -> str:
        """Safe for a file name, whatever the parts are; no two keys share one."""
        return _hashed(self)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The ceilings of a command. Zero: none, except for the output."""

    seconds: float = 1800.0
    """For the command, and for what it leaves behind as far as that is known."""
    output_bytes: int = 256 * 1024 * 1024
    """Kept whole up to here; beyond it the beginning and the end are kept."""
    memory_bytes: int = 0
    """Address space of each process."""
    processes: int = 0
    """Counted by the system for the whole user, and never against root."""
    file_bytes: int = 0
    """The largest file that it may write."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    command: str
    directory: str
    environment: dict[str, str] = {}
    """In addition to the few that are allowed through. Never written to disk."""
    limits: Limits = Limits()
    merged: bool = False
    """Both outputs in one pipe: their order is exact, but nobody can tell them apart."""
    inside: tuple[str, ...] = ()
    """A program, with its arguments, that is given the shell to run: a sandbox, say."""
    wrapper: str = ""
    """What that program becomes before it runs the shell, if it becomes another one."""
    shell: str = ""
    """Instead of bash, or sh where there is no bash."""

    def __repr__(self) -> str:
        """Without the values of variables: some are secrets, and errors and logs show what they are given."""
        return f"Spec(command={self.command!r}, directory={self.directory!r}, environment={sorted(self.environment)})"


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, as it is written down: nothing that could be a secret beyond the command itself."""

    key: CommandKey
    command: str
    directory: str
    limits: Limits
    merged: bool
    at: float
    boot: str
    wrapper: str = ""
    """The program that it runs inside of, as the system shows its name. It stays around only if it is a sandbox."""
    token: str = ""
    """Random, because the same key may be used in another folder. Empty in what an earlier version wrote."""
    home: str = ""
    """Which folder of commands it was asked in, as `identity_of` has it: a copy of that is another. Empty likewise."""

    @property
    def mark(self) -> str:
        """What all that it starts carries with it."""
        return self.token or self.key.name


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """The process that is the command. Pids come again: only with its start and the machine's is one meant."""

    pid: int
    started: str
    boot: str


class ProcessInfo(msgspec.Struct, frozen=True):
    """A process that was seen, for people to read."""

    pid: int
    started: str
    name: str


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. Written once."""

    reason: Reason
    exit_code: int | None = None
    """128 and the signal's number if a signal ended it; None if nobody knows."""
    at: float
    output_bytes: int = 0
    """What it wrote until then. What it left behind may write on."""
    detail: str = ""
    left_behind: tuple[ProcessInfo, ...] = ()
    """What still ran as the shell ended by itself."""
    killed: tuple[ProcessInfo, ...] = ()
    escaped: tuple[ProcessInfo, ...] = ()
    """After a kill: what ended, and what is known to run on."""


class CommandStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a command."""

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
        """A plain file that grows as the command writes."""
        return f"{self.folder}/output"


class KillReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a kill did. `escaped` is empty if everything that could be found is dead."""

    status: CommandStatus
    killed: tuple[ProcessInfo, ...] = ()
    escaped: tuple[ProcessInfo, ...] = ()


def _hashed(parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:40]
