"""State to what the model is sent. Built from the fold, never from whatever rows happen to exist.

Two properties hold for every log: each tool call is followed by exactly one result, in the order of the calls; and
what is sent at one step is the beginning of what is sent at the next, but for the list of running tasks, which stands
at the end of the system text and changes only when one starts or ends.
"""

from holdfast.events.context import AssistantTurn, ContextMessage, SystemText, ToolOutcome, ToolUse, UserText
from holdfast.session.fold import INTERRUPTED
from holdfast.session.notices import running_tasks
from holdfast.session.state import HistoryItem, Note, Person, Reply, State

RULES = (
    "When a message from the user arrives while you work, acknowledge it at once in one short visible line, then act "
    "on it. End every turn with a short visible answer, also after using tools."
)


def context(state: State, instructions: str = "") -> tuple[ContextMessage, ...]:
    """The messages of the next model call. `instructions` is the product's own system text."""
    messages: list[ContextMessage] = [SystemText(system_text(state, instructions))]
    for item in state.history:
        messages.extend(_told(item))
    return tuple(messages)


def system_text(state: State, instructions: str = "") -> str:
    """The first message of every call: the product's instructions, what the session's own client said, and which tasks
    run."""
    parts = (*_system(state, instructions), running_tasks(state.tasks.items()))
    return "\n\n".join(part for part in parts if part)


def _system(state: State, instructions: str) -> tuple[str, ...]:
    said = state.system_message or ""
    if state.conventions == "copilot":
        return (said,) if said and state.system_mode == "replace" else (instructions, said)
    return said or instructions, RULES


def _told(item: HistoryItem) -> list[ContextMessage]:
    match item:
        case Person(added=added, text=text, images=images):
            return [UserText(f"{added}\n\n{text}" if added else text, images)]
        case Note(text=text):
            return [UserText(text)]
        case Reply(interrupted=True):
            return [AssistantTurn(item.text)] if item.text else []
        case Reply():
            return _answer_with_results(item)


def _answer_with_results(reply: Reply) -> list[ContextMessage]:
    if not reply.text and not reply.calls:
        return []
    uses = tuple(ToolUse(call.tool_call_id, call.name, call.arguments) for call in reply.calls)
    results = [
        ToolOutcome(call.tool_call_id, INTERRUPTED if call.result is None else call.result, call.images)
        for call in reply.calls
    ]
    return [AssistantTurn(reply.text, uses), *results]
