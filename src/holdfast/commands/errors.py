"""Errors between the runtime and the supervisor.

CommandsError
├── SupervisorUnavailable   the world failed: it can't be started, or does not answer; try again
├── FolderIdUnusable        the world failed: the folder can't be written to, or the file with its id is damaged
├── CommandRefused          the caller is wrong, or the disk is full: the message says which, and nothing was started
│   └── StartTooLate        the sender's lease may be over; nothing was started, and the key is free
├── IsolationUnavailable    the settings ask for isolation that this machine or directory can't give; nothing started
└── NoSuchCommand           the key was never used, or its command was removed
CommandNotStarted           an outcome: no process was started, and the message says why
"""

from holdfast.commands.command import CommandKey


class CommandsError(Exception):
    """The errors that `Commands` raises."""


class SupervisorUnavailable(CommandsError):
    pass


class FolderIdUnusable(CommandsError):
    pass


class CommandRefused(CommandsError):
    def __init__(self, why: str, keys: tuple[CommandKey, ...] = ()) -> None:
        super().__init__(why)
        self.keys = keys
        """The commands that still run, if that is the reason."""


class StartTooLate(CommandRefused):
    pass


class NoSuchCommand(CommandsError):
    pass


class CommandNotStarted(Exception):
    """No process was started for this attempt, and none will be; the message says why.

    Not a `CommandsError`: the supervisor records it as an outcome, and a tool reports it as the result of its call."""

    def __init__(self, why: str, code: str = "") -> None:
        super().__init__(why)
        self.code = code
        """Stable name of the reason, or empty."""


class IsolationUnavailable(CommandsError):
    """Commands can't be confined as configured. Codes: `sandbox_unsupported` (the system, its kernel or processor),
    `sandbox_missing` (a program), `sandbox_outdated` (its version), `sandbox_forbidden` (a privilege),
    `sandbox_directory` (the working directory, or where the database is), `commands_refused` (there is no sandbox, and
    commands are not run without one)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        """The sentence for people, with the next step."""
