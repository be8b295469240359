"""The statements of `queries.sql`, by name. No SQL of the store's verbs stands anywhere else."""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import chain
from typing import Any, Final

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

MANY: Final = 128
"""How many rows one statement takes at the most."""

FRAGMENTS: Final = ("counted", "needs", "fits_left")
"""Parts of statements that stand in many of them."""


def _read() -> dict[str, str]:
    text = resources.files("holdfast.store.sqlite").joinpath("queries.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    assert len(set(parts[::2])) == len(parts[::2]), "two statements have the same name"
    found = {name: body.partition(";")[0].strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}
    for fragment in FRAGMENTS:
        text = "\n".join(line for line in found[fragment].splitlines() if not line.startswith("--"))
        found = {name: body.replace(f"{{{fragment}}}", text) for name, body in found.items()}
    return found


SQL: Final = _read()


class ManyRows:
    """A statement that is given many rows at once: far cheaper than one run for each, because every run hands the
    interpreter to another thread and has to wait to get it back."""

    def __init__(self, name: str, row: str) -> None:
        self._template = SQL[name]
        self._row = row
        self._statements: dict[int, str] = {}

    def run(self, db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> None:
        for statement, values in self._chunked(rows):
            db.execute(statement, values)

    def answers(self, db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The first column of the one row that each chunk answers with."""
        return [db.execute(statement, values).fetchone()[0] for statement, values in self._chunked(rows)]

    def _chunked(self, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, list[Any]]]:
        for start in range(0, len(rows), MANY):
            chunk = rows[start : start + MANY]
            yield self._statement(len(chunk)), list(chain.from_iterable(chunk))

    def _statement(self, size: int) -> str:
        """The same text for the same size, so that SQLite compiles each only once."""
        if size not in self._statements:
            self._statements[size] = self._template.replace("{rows}", ", ".join([self._row] * size))
        return self._statements[size]
