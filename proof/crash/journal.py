"""The memory of a crash campaign across the deaths of its processes: a file to which each line is appended in one
write, so that a line is complete as soon as it exists."""

import os
from pathlib import Path

import msgspec

from holdfast.events.ids import Key


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Something that happened in one of the processes, which are numbered in the order of their start."""

    process: int


class Begun(Entry, frozen=True, tag="begun"):
    """A process of the trial began; this is what it can run."""

    node: str
    tools: tuple[str, ...]


class Ended(Entry, frozen=True, tag="ended"):
    """A process of the trial has ended."""


class Occupied(Entry, frozen=True, tag="occupied"):
    """A tool of a session began to run (`enters`), or has ended."""

    owner: str
    session: str
    enters: bool


class Opened(Entry, frozen=True, tag="opened"):
    """A process opened the database, and this is how it found the session."""

    fence: int
    head: int | None
    """None: there was no such session."""


class Acknowledged(Entry, frozen=True, tag="acknowledged"):
    """A client's request was acknowledged or refused."""

    step: str
    """The verb and the client's own id, such as `send m1`."""
    outcome: str = ""
    refused: str = ""
    about: str = ""
    """The request that an answer was for."""


class Unanswered(Entry, frozen=True, tag="unanswered"):
    """The store could not say whether a write took place; the client asks again under the same id."""

    step: str
    code: str


class Read(Entry, frozen=True, tag="read"):
    """A reader was given an event."""

    position: int
    event_id: str
    closes: bool = False
    """A complete message: the pieces shown of it end here."""


class Shown(Entry, frozen=True, tag="shown"):
    """A reader was shown a piece of a message."""

    message_id: str
    block: int
    offset: int
    text: str


class Affected(Entry, frozen=True, tag="affected"):
    """A tool had its effect on the world."""

    tool: str
    tool_call_id: str
    attempt: int


class Asked(Entry, frozen=True, tag="asked"):
    """The model was called, with notices of tasks."""

    notices: tuple[str, ...] = ()
    """Each as its task and its outcome, in the order of the history."""
    running: tuple[str, ...] = ()
    """The tasks on the list of running tasks."""


class Sent(Entry, frozen=True, tag="sent"):
    """The model of a session was called, and not for a title or a summary."""

    messages: tuple[str, ...]
    """A digest of each message."""


class Passed(Entry, frozen=True, tag="passed"):
    """A crash point was passed."""

    stage: int
    point: str
    by_companion: bool = False


class Died(Entry, frozen=True, tag="died"):
    """The process is about to be killed, or frozen, here."""

    point: str


class Failed(Entry, frozen=True, tag="failed"):
    """The process misbehaved: it was stuck, raised an exception, or logged a bug."""

    text: str


AnyEntry = (
    Begun
    | Ended
    | Occupied
    | Opened
    | Acknowledged
    | Unanswered
    | Read
    | Shown
    | Affected
    | Asked
    | Sent
    | Passed
    | Died
    | Failed
)

_decoder = msgspec.json.Decoder(AnyEntry)


class Journal:
    """The file of one trial, open in one process."""

    def __init__(self, path: Path, process: int) -> None:
        self.process = process
        self._descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def add(self, entry: AnyEntry) -> None:
        os.write(self._descriptor, msgspec.json.encode(entry) + b"\n")


def path_of(folder: Path, kind: str, key: Key, *, first: Key) -> Path:
    """The file of a trial that is about one of its sessions, the first of which has no name in it."""
    return folder / (kind if key == first else f"{kind}-{key.owner}-{key.session}")


def read(path: Path) -> tuple[AnyEntry, ...]:
    """All entries so far."""
    if not path.exists():
        return ()
    return tuple(_decoder.decode(line) for line in path.read_bytes().splitlines())
