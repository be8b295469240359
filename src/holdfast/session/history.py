"""Builds the messages of a model call from the folded state.

Two properties hold for every log. Each tool call is followed by exactly one result, in the order of the calls. The
messages of one step are the beginning of the messages of the next, except for the list of running tasks at the end of
the system text, which changes only when a task starts or ends.

Text that is not the runtime's own is quoted here (`events/quote.py`). The log and its readers have it unquoted.
"""

from collections.abc import Iterable

from holdfast.events import quote
from holdfast.events.context import AssistantTurn, ContextMessage, SystemText, ToolOutcome, ToolUse, UserText
from holdfast.session.fold import INTERRUPTED
from holdfast.session.notices import running_tasks
from holdfast.session.state import HistoryItem, ModelReply, Note, Person, State, ToolCall

EACH = 500
"""The cost of one message in characters: an empty one takes as long to build as this many characters."""

RULES = (
    "When a message from the user arrives while you work, acknowledge it at once in one short visible line, then act "
    "on it. End every turn with a short visible answer, also after using tools."
)


def context(state: State, instructions: str = "") -> tuple[ContextMessage, ...]:
    """The messages of the next model call. `instructions` is the product's own system text."""
    return (system_message(state, instructions), *conversation(state.history, state.seed))


def system_message(state: State, instructions: str = "") -> SystemText:
    """The first message of every model call."""
    return SystemText(system_text(state, instructions, quote.rules(state.seed)))


def conversation(history: Iterable[HistoryItem], seed: str) -> tuple[ContextMessage, ...]:
    """All messages after the system message."""
    return tuple(message for item in history for message in _messages(item, seed))


def size_of(history: Iterable[HistoryItem]) -> int:
    """About how many characters the conversation has."""
    return sum(_size(item) for item in history)


def system_text(state: State, instructions: str = "", quoting: str = "") -> str:
    """The system text: the product's instructions, the client's system message, the rules of quoting (which readers are
    not shown), and the running tasks."""
    quoting_rules = () if _is_replaced(state) else (quoting,)
    tasks = quote.said(running_tasks(state.tasks.items()), state.seed)
    parts = (*_instructions(state, instructions), *quoting_rules, tasks)
    return "\n\n".join(part for part in parts if part)


def _instructions(state: State, instructions: str) -> tuple[str, ...]:
    from_client = state.system_message or ""
    if state.policy.system_message_replaces_instructions:
        return from_client or instructions, RULES
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


def _messages(item: HistoryItem, seed: str) -> list[ContextMessage]:
    match item:
        case Person(added=added, text=text, images=images):
            parts = (quote.quoted(added, "client", seed), quote.said(text, seed))
            return [UserText("\n\n".join(parts) if added else parts[1], images)]
        case Note(text=text):
            return [UserText(quote.noted(text, seed))]
        case ModelReply(interrupted=True):
            return [AssistantTurn(item.text)] if item.text else []
        case ModelReply():
            return _answer_with_results(item, seed)


def _answer_with_results(reply: ModelReply, seed: str) -> list[ContextMessage]:
    if not reply.text and not reply.calls and not reply.reasoning:
        return []
    uses = tuple(ToolUse(call.tool_call_id, call.name, call.arguments) for call in reply.calls)
    results = [ToolOutcome(call.tool_call_id, _result(call, seed), call.images) for call in reply.calls]
    return [AssistantTurn(reply.text, uses, reply.reasoning, reply.reasoning_source), *results]


def _result(call: ToolCall, seed: str) -> str:
    return INTERRUPTED if call.result is None else quote.quoted(call.result, call.origin, seed)
