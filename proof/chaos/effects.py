"""The effects of tools: one line in a file for each, written in one call, so that the line is complete as soon as the
effect happened."""

import os
import time
from pathlib import Path
from typing import Final

import msgspec

REPEATABLE: Final = frozenset({"put_line", "hold_again", "beat", "die"})
"""Tools that declared that they may run again for the same call."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    session: str
    tool_call_id: str
    attempt: int
    node: str
    at: float = 0
    """When it took place, by `time.time`."""


class Beat(msgspec.Struct, frozen=True):
    """A node was at work at that moment, in milliseconds since 1970."""

    node: str
    at: float


def note_effect(folder: Path, effect: Effect) -> None:
    _append(folder / "effects", effect)


def note_beat(folder: Path, node: str) -> None:
    _append(folder / "beats", Beat(node, time.time() * 1000))


def _append(file: Path, entry: msgspec.Struct) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(entry) + b"\n")
    finally:
        os.close(descriptor)


def effects_in(folder: Path) -> tuple[Effect, ...]:
    """All so far, in order."""
    return tuple(msgspec.json.decode(line, type=Effect) for line in _lines(folder / "effects"))


def beats_in(folder: Path) -> tuple[Beat, ...]:
    return tuple(msgspec.json.decode(line, type=Beat) for line in _lines(folder / "beats"))


def _lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines() if file.exists() else []
