"""docs/copilot.md matches the surface: every honoured option, every answered method."""

import re
from pathlib import Path

from holdfast.server.copilot.methods.absent import EMPTY
from holdfast.server.copilot.methods.settings import Options
from holdfast.server.copilot.options import SessionParams
from holdfast.server.copilot.surface import METHODS

PAGE = (Path(__file__).parents[4] / "docs" / "copilot.md").read_text(encoding="utf-8")

REFUSED = {"session.ui.elicitation", "session.mcp.oauth.login", "session.tasks.startAgent", "session.commands.execute"}
"""Methods that are registered only to refuse with their own sentence."""

AT_THE_GATE = {"connect", "ping", "status.get", "runtime.shutdown"}


def rows(heading: str) -> list[tuple[list[str], str]]:
    """The rows of the table under a heading: the names in the first cell, and the second cell."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)
    return [(re.findall(r"`([\w.]+)`", first), second) for first, second in cells]


def test_page_lists_exactly_the_honoured_options() -> None:
    told = {name for names, _ in rows("Options of a session") for name in names}
    assert told == set(SessionParams.__struct_encode_fields__)


def test_page_lists_every_updatable_option() -> None:
    (told,) = re.findall(r"`session\.options\.update` honours (.*?), all in one record", PAGE, re.DOTALL)
    heeded = set(Options.__struct_encode_fields__) - set(SessionParams.__struct_encode_fields__)
    assert heeded <= set(re.findall(r"`(\w+)`", told))


def test_page_lists_exactly_the_answered_methods() -> None:
    told = set()
    for begins, methods in rows("Methods"):
        names = re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", methods))
        told |= {f"{begin}.{name}" for begin in begins for name in names} if begins else set(names)
    known = {name for name in METHODS if name not in EMPTY} - REFUSED | AT_THE_GATE
    assert told == known


def test_lists_that_the_page_calls_empty_are_empty() -> None:
    (told,) = re.findall(r"Lists are empty: (.*?) and\nthe like", PAGE, re.DOTALL)
    assert all(EMPTY[name] in ({key: []} for key in EMPTY[name]) for name in re.findall(r"`([\w.]+)`", told))
