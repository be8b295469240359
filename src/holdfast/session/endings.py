"""How a turn ends before its model has finished: by a stop, an error or a crash. The text that readers saw is kept, and
everything open is closed in the same unit.

Errors are decided in `model_step.py` (a model call that fails), in `tool_step.py` (a repeated tool call) and here (a
poisoned session)."""

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.events import message, request, session, task, turn
from holdfast.events.body import Body
from holdfast.events.budget import OVER_BUDGET, OverBudget
from holdfast.events.ids import MessageId, RequestId, ToolCallId
from holdfast.events.inbox import StopCause
from holdfast.events.message import Block, SealCause
from holdfast.events.request import RequestKind
from holdfast.events.task import TaskNotice
from holdfast.session import intake, tool_results
from holdfast.session.actions import Append
from holdfast.session.budgets import sentence
from holdfast.session.compaction import given_up
from holdfast.session.fold import INTERRUPTED
from holdfast.session.inputs import COMPACTION, Inputs
from holdfast.session.state import Phase, State, Turn

SEALED_LINE: Final = "Your reply was interrupted; answer again."
STOPPED_LINE: Final = "The user stopped your work here, before this turn was finished."


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The words for a turn that is ended early, and not by a crash."""

    why: str = ""
    """The feedback on requests that are cancelled."""
    by: str = ""
    """The first half of a sentence for the model about calls without a result. Empty after a crash."""
    note: str = ""
    """A line for the model, if no interrupted call says that the turn ended."""


def end_early(
    state: State,
    inputs: Inputs,
    current: Turn,
    reason: turn.EndReason,
    ending: Ending = Ending(),  # noqa: B008
    *,
    first: Iterable[Body] = (),
    last: Iterable[Body] = (),
) -> Append:
    """End a turn in any phase. The event that caused the end goes `first`; one that reports its outcome goes `last`.

    Task news in the inbox is logged in the same unit. Left there, it would start a new turn right after the stop."""
    told = intake.waiting_news(inputs)
    written = Append(drops_segments=True, ends_commands=True, promotes=intake.news_promotions(told))
    written.events += first
    if COMPACTION not in inputs.running:  # One that still runs ends by itself: its end may be on its way to the log.
        written.events += given_up(state)
    if state.phase is Phase.CALLING_MODEL and inputs.shown:
        written.events.extend(cut_message(current.message_id, inputs.shown))
    for opened in state.requests.values():
        written.events.append(_cancellation(opened.request_id, opened.kind, opened.tool_call_id, ending.why))
        written.closes.append(opened.request_id)
    reply = state.reply()
    unfinished = reply.unfinished() if reply else []
    written.events.extend(tool_results.interruption(state, inputs, call, ending.by) for call in unfinished)
    if state.phase is not Phase.BETWEEN_STEPS:
        written.events.append(turn.StepEnded(turn_id=current.turn_id, step=current.step))
    written.events.extend(intake.news(told))
    if ending.note and not (unfinished and state.policy.explains_interruptions):
        written.events.append(message.Noted(text=ending.note, reason="stopped"))
    written.events.extend(last)
    written.events.append(turn_ended(inputs, current, reason))
    return written


def end_by_stop(state: State, inputs: Inputs, current: Turn, cause: StopCause) -> Append:
    """End the turn that a stop was meant for."""
    match cause:
        case "stopped":
            aborted = turn.Aborted(reason="user_initiated")
            stopping = Ending(why="Session aborted", by="The user stopped the turn", note=STOPPED_LINE)
            return end_early(state, inputs, current, "stopped", stopping, first=[aborted])
        case "suspended":
            suspending = Ending(why="Session suspended", by="The session was suspended")
            return end_early(state, inputs, current, "stopped", suspending)
        case "not continued":
            resuming = Ending(why="The session was resumed without it", by="The session was resumed without this turn")
            return end_early(state, inputs, current, "interrupted", resuming)


def end_poisoned(state: State, inputs: Inputs, current: Turn) -> Append:
    """Give up a turn whose holders keep dying."""
    error = session.SessionError(
        error_type="poisoned",
        message=f"This turn was given up: {inputs.bounds.max_claims_without_progress} processes in a row died or "
        "failed while they ran it. What was done so far is kept; send a message to go on.",
        retryable=True,
    )
    return end_early(state, inputs, current, "error", last=[error])


def end_over_budget(state: State, inputs: Inputs, current: Turn, over: OverBudget) -> Append:
    """End a turn for whose next model call there is no money."""
    return end_early(state, inputs, current, "error", last=[over_budget(over)])


def over_budget(over: OverBudget) -> session.SessionError:
    """The error that says so. It tells no amounts: people learn how much they spent in percent, and when they may go
    on."""
    return session.SessionError(error_type=OVER_BUDGET, message=sentence(over), retryable=over.scope != "price")


def turn_ended(inputs: Inputs, current: Turn, reason: turn.EndReason) -> turn.TurnEnded:
    return turn.TurnEnded(turn_id=current.turn_id, reason=reason, duration_ms=max(0, inputs.now - current.started_at))


def cut_message(message_id: MessageId, shown: Iterable[Block]) -> list[Body]:
    """An interrupted message with the blocks that readers saw. Tool calls in it are closed as interrupted."""
    blocks = tuple(shown)
    cut: list[Body] = [message.AssistantMessage(message_id=message_id, blocks=blocks, interrupted=True)]
    for block in blocks:
        if isinstance(block, message.ToolCallBlock):
            cut.append(tool_results.refusal(block.tool_call_id, INTERRUPTED, "interrupted"))
    return cut


def sealed(
    message_id: MessageId,
    shown: Iterable[Block],
    next_message_id: MessageId,
    cause: SealCause,
) -> list[Body]:
    """Close an interrupted message, so that the model is called again for a new one."""
    return [
        *cut_message(message_id, shown),
        message.Sealed(message_id=message_id, next_message_id=next_message_id, cause=cause),
        message.Noted(text=SEALED_LINE, reason="interrupted"),
    ]


def tasks_of_source(state: State) -> list[Body]:
    """For a copy of a session: its source's tasks are reported as lost, because their news goes to the source."""
    return [
        task.TaskNotified(
            notice=TaskNotice(
                task_id=task_id,
                kind="lost",
                command=running.command,
                description=running.description,
                detail="It belongs to the session that this one is a copy of.",
            )
        )
        for task_id, running in state.tasks.items()
    ]


def _cancellation(request_id: RequestId, kind: RequestKind, tool_call_id: ToolCallId, why: str) -> Body:
    match kind:
        case "permission":
            return request.PermissionCompleted(
                request_id=request_id, tool_call_id=tool_call_id, decision="cancelled", feedback=why
            )
        case "client_tool":
            return request.ExternalToolCompleted(request_id=request_id, cancelled=True)
        case "question":
            return request.UserInputCompleted(request_id=request_id, cancelled=True)
