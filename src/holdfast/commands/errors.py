"""What can go wrong between the runtime and the supervisor.

CommandsError
├── SupervisorUnavailable   the world failed: it can't be started, or does not answer; try again
├── CommandRefused          the caller is wrong, or the disk is full: it says so, and nothing was started
└── NoSuchCommand           the key was never used, or was forgotten
"""


class CommandsError(Exception):
    """Anything that `Commands` raises."""


class SupervisorUnavailable(CommandsError):
    pass


class CommandRefused(CommandsError):
    pass


class NoSuchCommand(CommandsError):
    pass
