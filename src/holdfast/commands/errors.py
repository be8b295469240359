"""What can go wrong between the runtime and the supervisor.

CommandsError
├── SupervisorUnavailable   the world failed: it can't be started, or does not answer; try again
├── FolderIdUnusable        the world failed: the folder can't be written to, or what says which one it is was spoilt
├── CommandRefused          the caller is wrong, or the disk is full: it says so, and nothing was started
├── IsolationUnavailable    the setting asks for what this machine, or this directory, can't give: nothing was started
└── NoSuchCommand           the key was never used, or was forgotten
"""

from holdfast.commands.command import CommandKey


class CommandsError(Exception):
    """Anything that `Commands` raises."""


class SupervisorUnavailable(CommandsError):
    pass


class FolderIdUnusable(CommandsError):
    pass


class CommandRefused(CommandsError):
    def __init__(self, why: str, keys: tuple[CommandKey, ...] = ()) -> None:
        super().__init__(why)
        self.keys = keys
        """Those that still run, if that is why."""


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
    """Codes: `sandbox_unsupported` (the system), `sandbox_missing` (a program), `sandbox_outdated` (its version),
    `sandbox_forbidden` (a right), `sandbox_directory` (the working directory, or where the database is),
    `commands_refused` (there is no sandbox, and commands are not run without one)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        """It says what to do next."""
