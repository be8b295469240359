"""Builds the messages of a model call from the folded state.

Two properties hold for every log. Each tool call is followed by exactly one result, in the order of the calls. The
messages of one call are the beginning of the messages of the next, except after a compaction, a rewind, or a change of
the system message or the mode: what else changes in between, such as the list of running tasks, is told at the end.

Text that is not the runtime's own is quoted here (`events/quote.py`). The log and its readers have it unquoted.
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile

from holdfast.events import quote
from holdfast.events.context import AssistantTurn, ContextMessage, SystemText, ToolOutcome, ToolUse, UserText
from holdfast.events.ids import FileId
from holdfast.events.message import AttachedFile, Image
from holdfast.session.fold import INTERRUPTED
from holdfast.session.prompt import RULES, Prompt
from holdfast.session.state import HistoryItem, ModelReply, Note, Person, State, Summary, ToolCall

IN_MODE = "The session is in {mode} mode."

EACH = 500
"""The cost of one message in characters: an empty one takes as long to build as this many characters."""

SUMMARISED = (
    "The conversation up to position {position} of this session's log is longer than you can be sent. A summary of it "
    "follows, then the messages of the user from that part which are kept word for word. Go on from there. The tool "
    "recall, if you have it, reads the log itself."
)
LEFT_OUT = (
    "The conversation up to position {position} of this session's log is longer than you can be sent, and no summary "
    "of it could be made: it is left out, except for the messages of the user that follow word for word. The tool "
    "recall, if you have it, reads the log itself."
)
KEPT = "The conversation goes on from here."


def context(state: State, prompt: Prompt = Prompt()) -> tuple[ContextMessage, ...]:  # noqa: B008
    """The messages of the next model call."""
    return (system_message(state, prompt), *conversation(state.history, state.seed))


def system_message(state: State, prompt: Prompt) -> SystemText:
    """The first message of every model call."""
    quoting = quote.rules(state.seed, prompt.quoting)
    return SystemText(system_text(state, prompt.instructions, prompt.rules, quoting))


def conversation(
    history: Iterable[HistoryItem], seed: str, shown: Mapping[FileId, Image] = {}
) -> tuple[ContextMessage, ...]:
    """All messages after the system message. `shown` has the content of the files that the model is shown; a file that
    was deleted is missing."""
    return tuple(message for item in history for message in _messages(item, seed, shown))


def files_in(history: Iterable[HistoryItem]) -> list[AttachedFile]:
    """The files that the model is shown with this history."""
    people: list[Person] = []
    for item in history:
        match item:
            case Person():
                people.append(item)
            case Summary():
                people += item.people
            case _:
                pass
    return [file for person in people for file in person.files]


def anchor(state: State) -> int | None:
    """The index, among the messages of a call, of the last one before the turn: what stands up to there is the same in
    all calls of the turn. None: the turn is the first."""
    current = state.turn
    if current is None:
        return None
    return sum(map(_count, takewhile(lambda item: item.position < current.position, state.history))) or None


def size_of(history: Iterable[HistoryItem]) -> int:
    """About how many characters the conversation has."""
    return sum(_size(item) for item in history)


def system_text(state: State, instructions: str = "", rules: str = RULES, quoting: str = "") -> str:
    """The system text: the product's instructions, the client's system message, and the rules of quoting and the mode,
    which readers are not shown. It is made from the state, so that no summary can weaken it."""
    own = () if _is_replaced(state) else (quoting, _mode(state))
    parts = (*_instructions(state, instructions, rules), *own)
    return "\n\n".join(part for part in parts if part)


def _mode(state: State) -> str:
    return "" if state.mode == "interactive" else IN_MODE.format(mode=state.mode)


def _instructions(state: State, instructions: str, rules: str) -> tuple[str, ...]:
    from_client = state.system_message or ""
    if state.policy.system_message_replaces_instructions:
        return from_client or instructions, rules
    return (from_client,) if _is_replaced(state) else (instructions, from_client)


def _is_replaced(state: State) -> bool:
    """Whether the client asked that its system message be the only system text."""
    is_appended = not state.policy.system_message_replaces_instructions
    return is_appended and state.system_mode == "replace" and bool(state.system_message)


def _size(item: HistoryItem) -> int:
    match item:
        case Person(added=added, text=text):
            return EACH + len(added) + len(text)
        case Note(text=text):
            return EACH + len(text)
        case ModelReply(text=text, calls=calls, reasoning=reasoning):
            called = sum(EACH + len(call.arguments) + len(call.result or "") for call in calls)
            return EACH + len(text) + called + sum(len(piece.text) + len(piece.opaque) for piece in reasoning)
        case Summary(text=text, standing=standing, people=people):
            return 2 * EACH + len(text) + len(standing) + sum(map(_size, people))


def _count(item: HistoryItem) -> int:
    """How many messages `_messages` makes of the item."""
    match item:
        case Person() | Note():
            return 1
        case Summary(people=people):
            return 2 + len(people)
        case ModelReply(interrupted=True, text=text):
            return 1 if text else 0
        case ModelReply(text=text, calls=calls, reasoning=reasoning):
            return 1 + len(calls) if text or calls or reasoning else 0


def _messages(item: HistoryItem, seed: str, shown: Mapping[FileId, Image]) -> list[ContextMessage]:
    match item:
        case Person(added=added, text=text, images=images, files=files):
            images = (*images, *(shown[file.file_id] for file in files if file.file_id in shown))
            parts = (quote.quoted(added, "client", seed), quote.said(text, seed))
            return [UserText("\n\n".join(parts) if added else parts[1], images)]
        case Note(text=text):
            return [UserText(quote.noted(text, seed))]
        case Summary():
            return _summary(item, seed, shown)
        case ModelReply(interrupted=True):
            return [AssistantTurn(item.text)] if item.text else []
        case ModelReply():
            return _answer_with_results(item, seed)


def _summary(summary: Summary, seed: str, shown: Mapping[FileId, Image]) -> list[ContextMessage]:
    """What a compaction left. The summary is quoted: a model made it, also of text from outside."""
    line = (SUMMARISED if summary.text else LEFT_OUT).format(position=summary.position)
    parts = [quote.noted(line, seed), quote.quoted(summary.text, "summary", seed)]
    people = [message for person in summary.people for message in _messages(person, seed, shown)]
    standing = "\n".join(part for part in (summary.standing, KEPT) if part)
    return [UserText("\n\n".join(part for part in parts if part)), *people, UserText(quote.noted(standing, seed))]


def _answer_with_results(reply: ModelReply, seed: str) -> list[ContextMessage]:
    if not reply.text and not reply.calls and not reply.reasoning:
        return []
    uses = tuple(ToolUse(call.tool_call_id, call.name, call.arguments) for call in reply.calls)
    results = [ToolOutcome(call.tool_call_id, _result(call, seed), call.images) for call in reply.calls]
    return [AssistantTurn(reply.text, uses, reply.reasoning, reply.reasoning_source), *results]


def _result(call: ToolCall, seed: str) -> str:
    return INTERRUPTED if call.result is None else quote.quoted(call.result, call.origin, seed)
