"""The page about the surface says what the surface does: every option that is heeded, every method that is answered."""

import re
from pathlib import Path

from holdfast.server.copilot.call import METHODS
from holdfast.server.copilot.methods.absent import EMPTY
from holdfast.server.copilot.methods.settings import Options
from holdfast.server.copilot.options import SessionParams

PAGE = (Path(__file__).parents[4] / "docs" / "copilot.md").read_text(encoding="utf-8")

REFUSED = {"session.ui.elicitation", "session.mcp.oauth.login", "session.tasks.startAgent", "session.commands.execute"}
"""What is answered only to say no in other words."""

AT_THE_GATE = {"connect", "ping", "status.get", "runtime.shutdown"}


def rows(heading: str) -> list[tuple[list[str], str]]:
    """The rows of the table under a heading: the names in the first cell, and the second."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)
    return [(re.findall(r"`([\w.]+)`", first), second) for first, second in cells]


def test_every_option_that_is_heeded_is_on_the_page_and_no_other() -> None:
    told = {name for names, _ in rows("Options of a session") for name in names}
    assert told == set(SessionParams.__struct_encode_fields__)


def test_every_option_that_can_be_changed_later_is_on_the_page() -> None:
    (told,) = re.findall(r"`session\.options\.update` honours (.*?), all in one record", PAGE, re.DOTALL)
    heeded = set(Options.__struct_encode_fields__) - set(SessionParams.__struct_encode_fields__)
    assert heeded <= set(re.findall(r"`(\w+)`", told))


def test_every_method_is_on_the_page_and_no_other() -> None:
    told = set()
    for begins, methods in rows("Methods"):
        names = re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", methods))
        told |= {f"{begin}.{name}" for begin in begins for name in names} if begins else set(names)
    known = {name for name in METHODS if name not in EMPTY} - REFUSED | AT_THE_GATE
    assert told == known


def test_what_the_page_calls_empty_is_empty() -> None:
    (told,) = re.findall(r"Lists are empty: (.*?) and\nthe like", PAGE, re.DOTALL)
    assert all(EMPTY[name] in ({key: []} for key in EMPTY[name]) for name in re.findall(r"`([\w.]+)`", told))
