"""The statements of `queries.sql`, by name. No SQL of the store's verbs stands anywhere else."""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import chain
from typing import Any, Final

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

_CHUNKS: Final = (128, 64, 32, 16, 8, 4, 2, 1)
"""Statements of many rows are made in these sizes only, so that each is compiled once."""


def _read() -> dict[str, str]:
    text = resources.files("holdfast.store.sqlite").joinpath("queries.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    return {name: body.partition(";")[0].strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


SQL: Final = _read()


class ManyRows:
    """A statement that is given many rows at once: far cheaper than one run for each, because every run hands the
    interpreter to another thread and has to wait to get it back."""

    def __init__(self, name: str, row: str) -> None:
        self._statements = [(size, SQL[name].replace("{rows}", ", ".join([row] * size))) for size in _CHUNKS]

    def run(self, db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> None:
        for statement, values in self._chunked(rows):
            db.execute(statement, values)

    def answers(self, db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The first column of the one row that each chunk answers with."""
        return [db.execute(statement, values).fetchone()[0] for statement, values in self._chunked(rows)]

    def _chunked(self, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, list[Any]]]:
        done = 0
        for size, statement in self._statements:
            while len(rows) - done >= size:
                yield statement, list(chain.from_iterable(rows[done : done + size]))
                done += size
