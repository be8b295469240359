"""A request and the rules that apply to it: allow, ask or deny.

By default reading inside the working directory is allowed, writing and executing ask, and whatever lies outside is
denied. A rule grants more: a kind (`read`, `write`, `shell`) or a tool's name, alone or with a pattern for its
subject in parentheses, such as `write(docs/*)` or `shell(git *)`; `*` grants everything.
"""

import re
from fnmatch import fnmatchcase
from glob import escape
from typing import Final, Literal

from holdfast.events.request import PermissionAsk

Verdict = Literal["allow", "ask", "deny"]

ANSWERS_PERMISSIONS: Final = "permission"
"""The capability of a client that has somebody, or something, to decide permissions."""

NOBODY_COULD: Final = "denied-no-approval-rule-and-could-not-request-from-user"
"""The decision on a permission that no client could decide."""

EVERY_CALL: Final = "*"
"""The rule that allows whatever is asked."""

_RULE = re.compile(r"(?P<name>\*|[A-Za-z_][\w.-]*)(?:\((?P<pattern>.+)\))?", re.DOTALL)

_CHAINING = (";", "&", "|", "<", ">", "`", "$(", "\n")


class BadRule(ValueError):
    """A permission rule that can't be read."""

    code = "rule_invalid"

    def __init__(self, rule: str) -> None:
        super().__init__(
            f"{rule!r} is not a permission rule. Write a kind (read, write, shell) or a tool's name, alone or with a "
            "pattern: write(docs/*), shell(git *). A single * allows everything."
        )


def check_rule(rule: str) -> str:
    """The rule itself; raises `BadRule` if it is none."""
    if not _RULE.fullmatch(rule):
        raise BadRule(rule)
    return rule


def judge(
    ask: PermissionAsk, *, tool_name: str, allow: list[str], unattended: bool, asks_always: bool = False
) -> Verdict:
    """What becomes of a call. With nobody there to be asked, what would ask is denied. `asks_always`: whoever is
    there is asked of everything, also to read, and about what lies outside."""
    if any(_grants(rule, ask, tool_name) for rule in allow):
        return "allow"
    if asks_always and not unattended:
        return "ask"
    if not ask.inside:
        return "deny"
    if ask.kind == "read":
        return "allow"
    return "deny" if unattended else "ask"


def session_rule(ask: PermissionAsk, tool_name: str) -> str:
    """The rule that approving for the rest of the session grants."""
    if ask.kind == "custom-tool":
        return custom_tool_rule(tool_name)
    if ask.kind == "shell" or not ask.inside:
        return f"{ask.kind}({escape(ask.subject)})"
    return ask.kind


def custom_tool_rule(tool_name: str) -> str:
    """For a tool that asks as itself. A built-in tool of the same name asks for what it does, and is not covered."""
    return f"custom-tool({escape(tool_name)})"


def _grants(rule: str, ask: PermissionAsk, tool_name: str) -> bool:
    parsed = _RULE.fullmatch(rule)
    if parsed is None:
        return False
    name, pattern = parsed["name"], parsed["pattern"]
    if name not in ("*", ask.kind, tool_name):
        return False
    if name == ask.kind and pattern is None and not ask.inside:
        return False
    if pattern is None:
        return True
    subject = tool_name if name == "custom-tool" else ask.subject
    return fnmatchcase(subject, pattern) and not (ask.kind == "shell" and _chains(subject, pattern))


def _chains(command: str, pattern: str) -> bool:
    """A pattern for one command does not cover a second one behind it, unless it says so itself."""
    return pattern != "*" and any(mark in command and mark not in pattern for mark in _CHAINING)
