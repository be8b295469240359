"""The messages between runtime and supervisor: JSON, each preceded by its length in four bytes.

Both sides ignore unknown fields and have defaults for missing ones: after an upgrade, a new runtime talks to the
supervisor that the old one left running.
"""

import struct
from typing import Final

import msgspec

from holdfast.commands.command import CommandKey, CommandStatus, KillReport, Spec

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024

_LENGTH: Final = struct.Struct(">I")


class StartRequest(msgspec.Struct, frozen=True, tag="start"):
    """Takes the key and runs the command. If the key is taken, returns its status. From `start_before` on, a reading of
    `boot_seconds`, nothing is started: the lease that allowed the sender to start it may be over."""

    key: CommandKey
    spec: Spec
    start_before: float | None = None


class AdoptRequest(msgspec.Struct, frozen=True, tag="adopt"):
    """Returns the status of the key. A free key is taken, so that nothing can start a command under it later."""

    key: CommandKey


class StatusRequest(msgspec.Struct, frozen=True, tag="ask"):
    key: CommandKey


class WatchRequest(msgspec.Struct, frozen=True, tag="watch"):
    """Answered when the output is longer than `offset`, if given, or when the command has ended."""

    key: CommandKey
    offset: int | None = None


class KillRequest(msgspec.Struct, frozen=True, tag="kill"):
    key: CommandKey
    grace_seconds: float


class ForgetRequest(msgspec.Struct, frozen=True, tag="forget"):
    """Removes every record of a command that has ended. Its key stays used."""

    key: CommandKey


class ForgetSessionRequest(msgspec.Struct, frozen=True, tag="forget_session"):
    """Removes every record of a session's ended commands, whose keys stay used; an error names the others."""

    owner: str
    session: str


class ListRequest(msgspec.Struct, frozen=True, tag="list"):
    pass


class CancelRequest(msgspec.Struct, frozen=True, tag="cancel"):
    """Withdraws a request that no caller waits for any more. Has no response itself."""

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
    """The part of a later version's request that any version understands: enough to answer it with an error."""

    id: int


class Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a request. `created`: the request took the key. No error and no status: no such command exists."""

    id: int
    status: CommandStatus | None = None
    created: bool = False
    statuses: tuple[CommandStatus, ...] = ()
    report: KillReport | None = None
    error: str = ""
    keys: tuple[CommandKey, ...] = ()
    """The commands that the error is about."""
    is_late: bool = False
    """The error is that the request came at its `start_before` or later."""


_encoder = msgspec.json.Encoder()
requests: Final = msgspec.json.Decoder(Request)
unknown_requests: Final = msgspec.json.Decoder(UnknownRequest)
responses: Final = msgspec.json.Decoder(Response)


class MessageTooLong(Exception):
    """The peer does not speak this protocol: no valid message is that long."""


def framed(message: Request | Response) -> bytes:
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


def take_frames(buffer: bytearray) -> list[bytes]:
    """Removes the complete messages from the front of the buffer and returns them."""
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
