"""State to what the model is sent. Built from the fold, never from whatever rows happen to exist.

Two properties hold for every log: each tool call is followed by exactly one result, in the order of the calls; and
what is sent at one step is the beginning of what is sent at the next, but for the list of running tasks, which stands
at the end of the system text and changes only when one starts or ends.

All text that is not the runtime's own is marked here, by `events/quote.py`: the log and the readers have it as it is.
"""

from collections.abc import Iterable

from holdfast.events import quote
from holdfast.events.context import AssistantTurn, ContextMessage, SystemText, ToolOutcome, ToolUse, UserText
from holdfast.session.fold import INTERRUPTED
from holdfast.session.notices import running_tasks
from holdfast.session.state import Call, HistoryItem, Note, Person, Reply, State

EACH = 500
"""Characters that take as long to tell as it takes to tell that something was said."""

RULES = (
    "When a message from the user arrives while you work, acknowledge it at once in one short visible line, then act "
    "on it. End every turn with a short visible answer, also after using tools."
)


def context(state: State, instructions: str = "") -> tuple[ContextMessage, ...]:
    """The messages of the next model call. `instructions` is the product's own system text."""
    return (first(state, instructions), *told(state.history, state.seed))


def first(state: State, instructions: str = "") -> SystemText:
    return SystemText(system_text(state, instructions, quote.rules(state.seed)))


def told(history: Iterable[HistoryItem], seed: str) -> tuple[ContextMessage, ...]:
    return tuple(message for item in history for message in _told(item, seed))


def size_of(history: Iterable[HistoryItem]) -> int:
    """About how many characters there are to tell."""
    return sum(_size(item) for item in history)


def system_text(state: State, instructions: str = "", quoting: str = "") -> str:
    """The first message of every call: the product's instructions, what the session's own client said, what the model
    has to know of quotes, which readers are not shown, and which tasks run."""
    own = () if _is_replaced(state) else (quoting,)
    parts = (*_system(state, instructions), *own, quote.said(running_tasks(state.tasks.items()), state.seed))
    return "\n\n".join(part for part in parts if part)


def _system(state: State, instructions: str) -> tuple[str, ...]:
    said = state.system_message or ""
    if state.policy.system_message_replaces_instructions:
        return said or instructions, RULES
    return (said,) if _is_replaced(state) else (instructions, said)


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
        case Reply(text=text, calls=calls):
            return EACH + len(text) + sum(EACH + len(call.arguments) + len(call.result or "") for call in calls)


def _told(item: HistoryItem, seed: str) -> list[ContextMessage]:
    match item:
        case Person(added=added, text=text, images=images):
            parts = (quote.quoted(added, "client", seed), quote.said(text, seed))
            return [UserText("\n\n".join(parts) if added else parts[1], images)]
        case Note(text=text):
            return [UserText(quote.noted(text, seed))]
        case Reply(interrupted=True):
            return [AssistantTurn(item.text)] if item.text else []
        case Reply():
            return _answer_with_results(item, seed)


def _answer_with_results(reply: Reply, seed: str) -> list[ContextMessage]:
    if not reply.text and not reply.calls:
        return []
    uses = tuple(ToolUse(call.tool_call_id, call.name, call.arguments) for call in reply.calls)
    results = [ToolOutcome(call.tool_call_id, _result(call, seed), call.images) for call in reply.calls]
    return [AssistantTurn(reply.text, uses), *results]


def _result(call: Call, seed: str) -> str:
    return INTERRUPTED if call.result is None else quote.quoted(call.result, call.origin, seed)
