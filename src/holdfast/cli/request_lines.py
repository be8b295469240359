"""A request in lines for people, in full: the command, the change, the arguments of the tool. Pure.

Nothing is cut here. A screen without room for all of it says so, and takes no approval before all of it was shown.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.cli.escapes import has_right_to_left, visible
from holdfast.events.request import ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.tools.diffs import is_whole

OpenedRequest = PermissionRequested | UserInputRequested | ExternalToolRequested

SHORT: Final = 120
"""A subject of at most so many characters stands in the first line."""

BAR: Final = "  │ "
"""Begins every line of foreign text, so that none can look like a line of ours."""

RIGHT_TO_LEFT: Final = (
    "  ! This has letters that are written from right to left: your terminal may show the words in another order than "
    "they are executed."
)

_DOES: Final = {"read": "read", "write": "write", "shell": "run", "custom-tool": "run"}

_IN_THE_DIFF: Final = {"create": ("path", "file_text"), "edit": ("path", "old_str", "new_str")}
"""Arguments that are left out, because the diff shows them, if the diff is whole."""


def short(identifier: str) -> str:
    """The beginning of an id, long enough to name it on a command line."""
    return visible(identifier, keep="")[:8]


def first_line(opened: OpenedRequest) -> str:
    """The line that names the request, with its subject if that is short."""
    name = f"(request {short(opened.request_id)})"
    match opened:
        case PermissionRequested(tool_name=tool, kind=kind, subject=subject):
            about = f" {visible(subject)}" if _is_short(subject) else ""
            return f"? {visible(tool, keep='')} wants to {_DOES[kind]}{about} {name}" + ("" if about else ":")
        case UserInputRequested(question=question):
            first, *rest = visible(question).strip().split("\n")
            return "\n".join((f"? {first} {name}", *_barred(rest)))
        case ExternalToolRequested(tool_name=tool):
            return f"? A client is to run {visible(tool, keep='')} {name}"


def lines(opened: OpenedRequest, arguments: str = "") -> list[str]:
    """All lines below the first. `arguments` are those of the tool call, as JSON."""
    match opened:
        case PermissionRequested():
            return _with_warning(opened, _permission_lines(opened, arguments))
        case UserInputRequested(choices=choices):
            return [line for number, choice in enumerate(choices, 1) for line in _choice_lines(number, choice)]
        case ExternalToolRequested(arguments=given):
            return _with_warning(opened, _argument_lines(given, left_out=()))


def _with_warning(opened: OpenedRequest, below: list[str]) -> list[str]:
    """The warning comes first, so that a screen that shows only the beginning has it."""
    is_reordered = any(has_right_to_left(line) for line in (first_line(opened), *below))
    return [RIGHT_TO_LEFT, *below] if is_reordered else below


def _permission_lines(opened: PermissionRequested, arguments: str) -> list[str]:
    found: list[str] = [] if _is_short(opened.subject) else _barred(visible(opened.subject).split("\n"))
    if isinstance(warning := opened.details.get("warning"), str):
        found.append(f"  ! {visible(warning, keep='')}")
    diff = opened.details.get("diff")
    shows_all = isinstance(diff, str) and diff != "" and is_whole(diff)
    left_out = _IN_THE_DIFF.get(opened.tool_name, ()) if shows_all else ()
    if opened.kind == "shell" and isinstance(command := decoded_arguments(arguments).get("command"), str):
        # The subject shows the command already, unless it is another one than the request is about.
        left_out = (*left_out, *(("command",) if opened.subject.startswith(command.strip()) else ()))
    found += _argument_lines(arguments, left_out=left_out)
    if isinstance(diff, str) and diff:
        found += _barred(visible(diff).rstrip("\n").split("\n"))
    return found


def _argument_lines(arguments: str, *, left_out: tuple[str, ...]) -> list[str]:
    decoded = decoded_arguments(arguments)
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


def decoded_arguments(arguments: str) -> Mapping[str, Any]:
    """The arguments of a tool call; empty if they are no JSON object."""
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
