"""The errors of commands: a sentence with a stable code, and an exit status.

0  done
1  the database, the server or the system failed, or the state has changed meanwhile
2  the caller is wrong: an option, a setting, an id
"""

import errno
import os
import sys
from typing import Final

from holdfast.client.errors import AddressInvalid, ClientError, NotHoldfast, NotSignedIn, Refused, TooMany, Unreachable
from holdfast.commands.errors import CommandsError, IsolationUnavailable
from holdfast.config import ConfigError
from holdfast.models.errors import ModelNotUsable
from holdfast.protocol.refusal import Conflict, Invalid, NotFound, OperationError
from holdfast.store.errors import StoreError

WORLD: Final = 1
USAGE: Final = 2

NOT_SIGNED_IN: Final = (
    "The server did not accept the key, or none was given. Make one on the server's machine with `holdfast keys create "
    "--name NAME`, and set HOLDFAST_KEY to it or pass it with --key. A server with --auth none has no keys but a "
    "token, new at each start: if you started it on this machine, the token is found without being given; otherwise "
    "use the link that the server prints as the --url."
)


class Refusal(Exception):
    """A command can't do what it was asked to do."""

    def __init__(self, code: str, message: str, *, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.exit_code = exit_code


def explained(error: BaseException) -> Refusal | None:
    """The error as a sentence for people; None if it is a bug of ours."""
    match error:
        case Refusal():
            return error
        case ConfigError():
            return Refusal(error.code, str(error))
        case IsolationUnavailable():
            return Refusal(error.code, error.message)
        case CommandsError():
            return Refusal("commands_unavailable", f"Commands can't be reached: {error}.", exit_code=WORLD)
        case ModelNotUsable():
            return Refusal("model_not_usable", error.message)
        case Conflict():
            return Refusal(error.code, error.message, exit_code=WORLD)
        case NotFound() | Invalid():
            return Refusal(error.code, error.message)
        case ClientError():
            return _server_refusal(error)
        case OperationError():
            return Refusal(error.code, error.message)
        case StoreError():
            return Refusal(error.code, error.message, exit_code=WORLD)
        case FileExistsError() | FileNotFoundError() | PermissionError() | IsADirectoryError() | NotADirectoryError():
            return Refusal("file_not_usable", _file_message(error), exit_code=WORLD)
        case OSError():
            return Refusal("system_error", _file_message(error), exit_code=WORLD)
        case BaseExceptionGroup() if len(error.exceptions) == 1:
            return explained(error.exceptions[0])
        case _:
            return None


def report(error: BaseException) -> int:
    """Print an error to stderr and return the exit status."""
    found = explained(error)
    if os.environ.get("HOLDFAST_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    if found is None:
        bug = f"Holdfast has a bug ({type(error).__name__}: {error}). Set HOLDFAST_DEBUG=1 to see the traceback."
        found = Refusal("internal_error", f"{bug} Everything that was accepted before is kept.", exit_code=WORLD)
    from holdfast.cli.escapes import visible

    print(f"holdfast: {visible(found.message)} [{found.code}]", file=sys.stderr)
    return found.exit_code


def address_refusal(error: OSError, *, purpose: str, host: str, port: int) -> Refusal:
    """The refusal for an address that can't be listened on. Only a port in use may be free again later."""
    return Refusal(
        "address_not_usable",
        f"Can't {purpose} on {host}, port {port}: {error.strerror or error}.",
        exit_code=WORLD if error.errno == errno.EADDRINUSE else USAGE,
    )


def _server_refusal(error: ClientError) -> Refusal:
    match error:
        case Unreachable(message=message):
            start = "Check the URL, and that the server is running: `holdfast serve` starts one."
            return Refusal(error.code, f"{message} {start}", exit_code=WORLD)
        case NotSignedIn():
            return Refusal(error.code, NOT_SIGNED_IN)
        case TooMany(message=message, retry_after=seconds) if seconds is not None:
            return Refusal(error.code, f"{message} Try again in {seconds:g} s.", exit_code=WORLD)
        case AddressInvalid() | NotHoldfast(code="not_holdfast"):
            return Refusal(error.code, error.message)
        case Refused(status=status) if status < 409:
            return Refusal(error.code, error.message)
        case _:
            return Refusal(error.code, error.message, exit_code=WORLD)


def _file_message(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}."
