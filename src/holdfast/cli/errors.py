"""How a command fails: one sentence with its stable code, and an exit status that says whose fault it was.

0  done
1  the world failed, or things are no longer as the caller thought
2  the caller is wrong: an option, a setting, an id
"""

import os
import sys
from typing import Final

from holdfast.client.errors import AddressInvalid, ClientError, NotHoldfast, NotSignedIn, Refused, TooMany, Unreachable
from holdfast.commands.errors import CommandsError, IsolationUnavailable
from holdfast.config import ConfigError
from holdfast.models.errors import ModelNotUsable
from holdfast.server.errors import Conflict, OperationError
from holdfast.store.errors import StoreError

WORLD: Final = 1
USAGE: Final = 2

NOT_SIGNED_IN: Final = (
    "The server does not know who asks: there is no key, or it is not one of its keys. Make one where the server runs, "
    "with `holdfast keys create --name NAME`, and give it as HOLDFAST_KEY or with --key. A server with --auth none has "
    "a token for each start instead: it is in the link that it prints, and found by itself if you started the server, "
    "on this machine."
)


class Refusal(Exception):
    """A command can't do what it was asked, and says why."""

    def __init__(self, code: str, message: str, *, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.exit_code = exit_code


def explained(error: BaseException) -> Refusal | None:
    """What to tell a person of this error; None when it is our bug."""
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
        case OperationError():
            return Refusal(error.code, error.message)
        case StoreError():
            return Refusal(error.code, error.message, exit_code=WORLD)
        case ClientError():
            return _of_server(error)
        case FileExistsError() | FileNotFoundError() | PermissionError() | IsADirectoryError() | NotADirectoryError():
            return Refusal("file_not_usable", _of_file(error), exit_code=WORLD)
        case OSError():
            return Refusal("system_error", _of_file(error), exit_code=WORLD)
        case BaseExceptionGroup() if len(error.exceptions) == 1:
            return explained(error.exceptions[0])
        case _:
            return None


def report(error: BaseException) -> int:
    """Tell what went wrong on stderr; the exit status."""
    found = explained(error)
    if os.environ.get("HOLDFAST_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    if found is None:
        kind = type(error).__name__
        found = Refusal("internal_error", f"Holdfast has a bug ({kind}: {error}).", exit_code=WORLD)
        found.message += " Set HOLDFAST_DEBUG=1 to see where. What was accepted before is kept."
    tell(found)
    return found.exit_code


def tell(refusal: Refusal) -> None:
    from holdfast.cli.escapes import visible

    print(f"holdfast: {visible(refusal.message)} [{refusal.code}]", file=sys.stderr)


def _of_server(error: ClientError) -> Refusal:
    match error:
        case Unreachable(message=message):
            start = "Is the URL right, and is the server running? `holdfast serve` starts one."
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


def _of_file(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}."
