"""What a session asks to be approved, all of it: the command, the change, what the tool was given. Pure.

Nothing is cut here. A screen that has no room for all of it says so, and offers no approval before it was shown.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.cli.escapes import visible
from holdfast.events.request import ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.tools.diffs import is_whole

OpenedRequest = PermissionRequested | UserInputRequested | ExternalToolRequested

SHORT: Final = 120
"""A subject of at most so many characters stands in the line that asks."""

BAR: Final = "  │ "
"""Stands before every line that is not of our making, so that none can look like one of ours."""

_DOES: Final = {"read": "read", "write": "write", "shell": "run", "custom-tool": "run"}

_IN_THE_DIFF: Final = {"create": ("path", "file_text"), "edit": ("path", "old_str", "new_str")}
"""Arguments that a diff shows, where there is one and all of it is there."""


def short(identifier: str) -> str:
    """Enough of an id to name it on a command line."""
    return visible(identifier, keep="")[:8]


def first_line(asked: OpenedRequest) -> str:
    """Names the request, and what it is about where that is short."""
    name = f"(request {short(asked.request_id)})"
    match asked:
        case PermissionRequested(tool_name=tool, kind=kind, subject=subject):
            about = f" {visible(subject)}" if _is_short(subject) else ""
            return f"? {visible(tool, keep='')} wants to {_DOES[kind]}{about} {name}" + ("" if about else ":")
        case UserInputRequested(question=question):
            first, *rest = visible(question).strip().split("\n")
            return "\n".join((f"? {first} {name}", *_barred(rest)))
        case ExternalToolRequested(tool_name=tool):
            return f"? A client is to run {visible(tool, keep='')} {name}"


def lines(asked: OpenedRequest, arguments: str = "") -> list[str]:
    """Everything below the first line. `arguments`: what the call was given, as JSON."""
    match asked:
        case PermissionRequested():
            return _permission_lines(asked, arguments)
        case UserInputRequested(choices=choices):
            return [line for number, choice in enumerate(choices, 1) for line in _choice_lines(number, choice)]
        case ExternalToolRequested(arguments=given):
            return _argument_lines(given, left_out=())


def _permission_lines(asked: PermissionRequested, arguments: str) -> list[str]:
    found: list[str] = [] if _is_short(asked.subject) else _barred(visible(asked.subject).split("\n"))
    if isinstance(warning := asked.details.get("warning"), str):
        found.append(f"  ! {visible(warning, keep='')}")
    diff = asked.details.get("diff")
    shows_all = isinstance(diff, str) and diff != "" and is_whole(diff)
    left_out = _IN_THE_DIFF.get(asked.tool_name, ()) if shows_all else ()
    if asked.kind == "shell" and isinstance(command := _decoded(arguments).get("command"), str):
        # The command stands above already, unless it is not the one that is asked about.
        left_out = (*left_out, *(("command",) if asked.subject.startswith(command.strip()) else ()))
    found += _argument_lines(arguments, left_out=left_out)
    if isinstance(diff, str) and diff:
        found += _barred(visible(diff).rstrip("\n").split("\n"))
    return found


def _argument_lines(arguments: str, *, left_out: tuple[str, ...]) -> list[str]:
    decoded = _decoded(arguments)
    if not decoded and arguments.strip() not in ("", "{}"):
        return _barred(visible(arguments).split("\n"))
    found: list[str] = []
    for name, value in decoded.items():
        if name in left_out:
            continue
        text = visible(value if isinstance(value, str) else msgspec.json.encode(value).decode())
        shown = text.split("\n")
        if len(shown) == 1 and len(text) <= SHORT:
            found.append(f"  {visible(name, keep='')}: {text}")
        else:
            found += [f"  {visible(name, keep='')}:", *_barred(shown)]
    return found


def _choice_lines(number: int, choice: str) -> list[str]:
    first, *rest = visible(choice).split("\n")
    return [f"  {number}. {first}", *_barred(rest)]


def _barred(text: list[str]) -> list[str]:
    return [BAR + line for line in text]


def _is_short(subject: str) -> bool:
    return "\n" not in subject and len(visible(subject)) <= SHORT


def _decoded(arguments: str) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
