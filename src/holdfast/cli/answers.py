"""Typed lines as answers to a request, and the decision of a permission."""

import re

from holdfast.events.request import Decision, UserInputRequested
from holdfast.protocol.home import AnySession

_PERMISSION = re.compile(r"(?P<word>y|yes|s|session|n|no)(?:\s*[,:;.]?\s+(?P<reason>.+)|[.!]?)", re.I | re.S)


def permission_answer(line: str) -> tuple[Decision, str] | None:
    """The decision and the reason given for it; None if the line is no answer."""
    found = _PERMISSION.fullmatch(line.strip())
    if found is None:
        return None
    word, reason = found["word"].lower()[0], (found["reason"] or "").strip()
    if word == "n":
        return "denied-interactively-by-user", reason
    if reason:
        return None  # "yes but …" is not a plain yes, and must not count as one
    return ("approved" if word == "y" else "approved-for-session"), ""


def question_answer(line: str, asked: UserInputRequested) -> tuple[str, bool] | None:
    """The answer and whether it is free text; None if the line is no answer. A number, or the text of a choice, picks
    that choice."""
    typed = line.strip()
    if typed.isdecimal() and 1 <= int(typed) <= len(asked.choices):
        return asked.choices[int(typed) - 1], False
    for choice in asked.choices:
        if choice.casefold() == typed.casefold():
            return choice, False
    return (typed, True) if typed and (asked.allow_freeform or not asked.choices) else None


async def decide(session: AnySession, request_id: str, decision: Decision, *, feedback: str = "") -> None:
    """Answer a permission request, durable on return."""
    if decision in ("approved", "approved-for-session"):
        await session.approve(request_id, for_session=decision == "approved-for-session")
    else:
        await session.deny(request_id, feedback=feedback)
