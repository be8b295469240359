"""The statements of `queries.sql`, by name. All SQL of the store's methods is in that file."""

import re
from functools import cache
from pathlib import Path
from typing import Final

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)

FRAGMENTS: Final = ("counted", "needs", "fits", "silent_ms", "is_same_timeline", "delivery_fields")
"""Parts that many statements share."""


def _read() -> dict[str, str]:
    text = Path(__file__).with_name("queries.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    assert len(set(parts[::2])) == len(parts[::2]), "two statements have the same name"
    found = {name: body.partition(";\n")[0].strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}
    for fragment in FRAGMENTS:
        text = _COMMENT.sub("", found.pop(fragment))
        found = {name: body.replace(f"{{{fragment}}}", text) for name, body in found.items()}
    return found


SQL: Final = _read()

PARTS: Final = {"appended": 8, "dropped": 0, "streamed": 9, "used": 11}
"""The parts that the statement for units may have, and how many parameters each takes."""

LOG_PARAMETERS: Final = 9
DESCRIBED_PARAMETERS: Final = 7
"""How many parameters the statement for units has: for the log, and for the other columns of the sessions' rows."""

_DESCRIBED = re.compile(r"^.* -- described\n", re.MULTILINE)


@cache
def commit_units(parts: tuple[str, ...], *, described: bool) -> str:
    """The statement for a batch that has rows of these kinds. Other parts would be planned, and run, for nothing.
    `described`: the batch changes other columns of a session's row than those of its log."""
    whole, first = "", LOG_PARAMETERS + DESCRIBED_PARAMETERS * described + 1
    for name in parts:
        parameters = [f"${number}" for number in range(first, first + PARTS[name])]
        whole += f", {name} AS (\n{SQL[name].format(*parameters)}\n)"
        first += PARTS[name]
    statement = SQL["commit_units"] if described else _DESCRIBED.sub("", SQL["commit_units"])
    return statement.replace("{parts}", whole)
