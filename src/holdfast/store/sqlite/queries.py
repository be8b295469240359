"""The statements of `queries.sql`, by name. All SQL of the store's methods is in that file."""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

MANY: Final = 128
"""The most rows that one statement takes."""

FRAGMENTS: Final = ("counted", "needs", "fits_left", "delivery_fields")
"""Parts that many statements share."""


def _read() -> dict[str, str]:
    text = Path(__file__).with_name("queries.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    assert len(set(parts[::2])) == len(parts[::2]), "two statements have the same name"
    found = {name: body.partition(";")[0].strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}
    for fragment in FRAGMENTS:
        text = "\n".join(line for line in found[fragment].splitlines() if not line.startswith("--"))
        found = {name: body.replace(f"{{{fragment}}}", text) for name, body in found.items()}
    return found


SQL: Final = _read()


class ManyRows:
    """A statement that takes many rows at once: far cheaper than one run for each row, because every run gives up the
    interpreter lock and has to wait to get it back."""

    def __init__(self, name: str, row: str) -> None:
        self._template = SQL[name]
        self._row = row
        self._statements: dict[int, str] = {}

    def run(self, db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> None:
        for statement, values in self._chunked(rows):
            db.execute(statement, values)

    def answers(self, db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The first column of the one row that each chunk returns."""
        return [db.execute(statement, values).fetchone()[0] for statement, values in self._chunked(rows)]

    def _chunked(self, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, list[Any]]]:
        for start in range(0, len(rows), MANY):
            chunk = rows[start : start + MANY]
            yield self._statement(len(chunk)), list(chain.from_iterable(chunk))

    def _statement(self, size: int) -> str:
        """The statement for a number of rows: always the same text, so that SQLite compiles it only once."""
        if size not in self._statements:
            self._statements[size] = self._template.replace("{rows}", ", ".join([self._row] * size))
        return self._statements[size]
