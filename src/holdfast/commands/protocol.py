"""What the runtime and the supervisor say to each other: JSON, each message after its length in four bytes.

Both sides ignore fields that they do not know and have defaults for those that are missing: after an upgrade a new
runtime speaks with the supervisor that the old one left.
"""

import struct
from typing import Final

import msgspec

from holdfast.commands.command import CommandKey, CommandStatus, KillReport, Spec

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024

_LENGTH: Final = struct.Struct(">I")


class StartRequest(msgspec.Struct, frozen=True, tag="start"):
    """Take the key and run the command. If the key is taken: what became of it."""

    key: CommandKey
    spec: Spec


class AdoptRequest(msgspec.Struct, frozen=True, tag="adopt"):
    """What became of the key. If it is free it is taken, so that nobody starts a command under it any more."""

    key: CommandKey


class StatusRequest(msgspec.Struct, frozen=True, tag="ask"):
    key: CommandKey


class WatchRequest(msgspec.Struct, frozen=True, tag="watch"):
    """Answered when the output is longer than `offset`, if there is one, or when the command has ended."""

    key: CommandKey
    offset: int | None = None


class KillRequest(msgspec.Struct, frozen=True, tag="kill"):
    key: CommandKey
    grace_seconds: float


class ForgetRequest(msgspec.Struct, frozen=True, tag="forget"):
    """Remove all that is known of a command that has ended."""

    key: CommandKey


class ForgetSessionRequest(msgspec.Struct, frozen=True, tag="forget_session"):
    """Remove all that is known of those commands of a session that have ended; an error names the others."""

    owner: str
    session: str


class ListRequest(msgspec.Struct, frozen=True, tag="list"):
    pass


class CancelRequest(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for the answer to that request any more. Has no answer itself."""

    request: int


Verb = (
    StartRequest
    | AdoptRequest
    | StatusRequest
    | WatchRequest
    | KillRequest
    | ForgetRequest
    | ForgetSessionRequest
    | ListRequest
    | CancelRequest
)


class Request(msgspec.Struct, frozen=True):
    id: int
    verb: Verb


class UnknownRequest(msgspec.Struct, frozen=True):
    """As much of a request as can be understood of one that a later version asks: enough to say so."""

    id: int


class Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`created`: the request took the key. Without an error and without a status: there is no such command."""

    id: int
    status: CommandStatus | None = None
    created: bool = False
    statuses: tuple[CommandStatus, ...] = ()
    report: KillReport | None = None
    error: str = ""
    keys: tuple[CommandKey, ...] = ()
    """Whom the error is about."""


_encoder = msgspec.json.Encoder()
requests: Final = msgspec.json.Decoder(Request)
unknown_requests: Final = msgspec.json.Decoder(UnknownRequest)
responses: Final = msgspec.json.Decoder(Response)


class MessageTooLong(Exception):
    """Nobody who speaks this protocol sends that."""


def framed(message: Request | Response) -> bytes:
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


def take_frames(buffer: bytearray) -> list[bytes]:
    """Take the whole messages out of the beginning of what was received."""
    taken = []
    while len(buffer) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer)
        if length > MAX_MESSAGE_BYTES:
            raise MessageTooLong
        end = _LENGTH.size + length
        if len(buffer) < end:
            break
        taken.append(bytes(buffer[_LENGTH.size : end]))
        del buffer[:end]
    return taken
