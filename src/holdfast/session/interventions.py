"""Answers, stops, rewinds, moves to the background, compactions and declined requests: everything that people and
clients put into the inbox to change a session, and that is decided before the phase is looked at."""

from collections.abc import Sequence

from holdfast.events import request, session, tool
from holdfast.events.ids import RequestId
from holdfast.events.inbox import (
    Answer,
    InboxItem,
    PermissionAnswer,
    QuestionAnswer,
    Rewind,
    Stop,
    ToBackground,
    ToolAnswer,
)
from holdfast.session import compaction, endings, tool_results
from holdfast.session.actions import Append, GoToBackground, Interrupt, Promoted
from holdfast.session.inputs import Inputs
from holdfast.session.permissions import NOBODY_COULD
from holdfast.session.state import OpenRequest, State


def intervene(state: State, inputs: Inputs) -> Append | Interrupt | GoToBackground | None:
    """The first thing that the inbox asks for beyond a turn; None: it asks for nothing, or only for turns."""
    return (
        answers(state, inputs)
        or stop(state, inputs)
        or rewind(state, inputs)
        or to_background(state, inputs)
        or compaction.requested(state, inputs)
    )


def answers(state: State, inputs: Inputs) -> Append | None:
    """Close the requests whose answers were accepted before the first stop in the inbox."""
    written = Append()
    for item in inputs.inbox:
        match item.item:
            case Stop():
                break
            case Answer() as answer:
                _close(state, inputs, item, answer, written)
            case _:
                continue
    return written if written.promotes else None


def _close(state: State, inputs: Inputs, item: InboxItem, answer: Answer, written: Append) -> None:
    opened = state.requests.get(answer.request_id)
    if opened is None:
        written.promotes.append(Promoted(item.sequence, "request_closed", refused=True))
        return
    written.promotes.append(Promoted(item.sequence, "answered"))
    written.closes.append(opened.request_id)
    by = answer.answered_by
    match answer.content:
        case PermissionAnswer() as decided:
            _close_permission(opened, decided, by, written)
        case ToolAnswer() as result:
            _close_client_tool(opened, result, by, inputs, written)
        case QuestionAnswer() as said:
            _close_question(opened, said, by, written)


def _close_permission(opened: OpenRequest, decided: PermissionAnswer, by: str, written: Append) -> None:
    written.events.append(
        request.PermissionCompleted(
            request_id=opened.request_id,
            tool_call_id=opened.tool_call_id,
            decision=decided.decision,
            feedback=decided.feedback,
            answered_by=by,
            rules=decided.rules,
            place=decided.place,
        )
    )
    if decided.decision == NOBODY_COULD:
        written.events.append(tool_results.refusal(opened.tool_call_id, tool_results.DENIED, "denied"))
    elif decided.decision not in ("approved", "approved-for-session"):
        text = f"{tool_results.REJECTED} {decided.feedback}".strip()
        written.events.append(tool_results.refusal(opened.tool_call_id, text, "rejected", "person"))


def _close_client_tool(opened: OpenRequest, result: ToolAnswer, by: str, inputs: Inputs, written: Append) -> None:
    written.events.append(request.ExternalToolCompleted(request_id=opened.request_id, answered_by=by))
    written.events.append(
        tool.ToolCompleted(
            tool_call_id=opened.tool_call_id,
            success=result.success,
            content=result.content,
            preview=tool_results.preview(result.content, inputs.bounds.max_tool_characters, opened.tool_call_id),
            origin="client",
            error=None if result.success else result.error or "failed",
            images=result.images,
        )
    )


def _close_question(opened: OpenRequest, said: QuestionAnswer, by: str, written: Append) -> None:
    if said.failed:
        written.events.append(request.UserInputCompleted(request_id=opened.request_id, answered_by=by, cancelled=True))
        refused = f"The user could not be asked: {said.answer}"
        written.events.append(tool_results.refusal(opened.tool_call_id, refused, "failed", "client"))
        return
    written.events.append(
        request.UserInputCompleted(
            request_id=opened.request_id, answer=said.answer, was_freeform=said.was_freeform, answered_by=by
        )
    )
    content = f"User responded: {said.answer}" if said.was_freeform else f"User selected: {said.answer}"
    written.events.append(
        tool.ToolCompleted(tool_call_id=opened.tool_call_id, success=True, content=content, origin="person")
    )


def stop(state: State, inputs: Inputs) -> Append | Interrupt | None:
    """Apply the first stop in the inbox to the turn that it was meant for, and to no other."""
    stopping = next((item for item in inputs.inbox if isinstance(item.item, Stop)), None)
    if stopping is None:
        return None
    assert isinstance(stopping.item, Stop)
    if state.turn is None or state.turn.turn_id != stopping.item.turn_id:
        return Append(promotes=[Promoted(stopping.sequence, "turn_ended_before")])
    if inputs.running:
        return Interrupt()
    ending = endings.end_by_stop(state, inputs, state.turn, stopping.item.cause)
    ending.promotes.append(Promoted(stopping.sequence, "stopped"))
    return ending


def rewind(state: State, inputs: Inputs) -> Append | None:
    """Apply the first rewind in the inbox; refuse it while a turn is unfinished."""
    rewinding = next((item for item in inputs.inbox if isinstance(item.item, Rewind)), None)
    if rewinding is None:
        return None
    assert isinstance(rewinding.item, Rewind)
    if state.turn is not None:
        return Append(promotes=[Promoted(rewinding.sequence, "busy", refused=True)])
    kept = min(rewinding.item.kept, state.head)
    events = [*compaction.undone_by(state, kept), session.Truncated(kept=kept)]
    return Append(events=events, promotes=[Promoted(rewinding.sequence, "rewound")])


def to_background(state: State, inputs: Inputs) -> Append | GoToBackground | None:
    """Move a running call to the background on request. The call's own result reports where it went."""
    reply = state.reply()
    for item in inputs.inbox:
        if not isinstance(item.item, ToBackground):
            continue
        call = reply.call(item.item.tool_call_id) if reply else None
        if call is None or call.result is not None:
            outcome = "backgrounded" if item.item.task_id in state.tasks else "ended_before"
            return Append(promotes=[Promoted(item.sequence, outcome)])
        if call.tool_call_id in inputs.running - inputs.backgrounded:
            return GoToBackground(call.tool_call_id)
    return None


def declined_by_all(deciders: Sequence[frozenset[RequestId]]) -> frozenset[RequestId]:
    """The requests that every attached client able to decide permissions has declined; none without such a client."""
    return frozenset.intersection(*deciders) if deciders else frozenset()


def declined_permissions(state: State, inputs: Inputs) -> tuple[RequestId, ...]:
    """The open permission requests to deny, because every client that could decide them declined. Without such a client
    a permission waits: the next client may decide it."""
    if not state.requests or not inputs.deciders:
        return ()
    declined = declined_by_all(inputs.deciders) - inputs.denying
    return tuple(
        opened.request_id
        for opened in state.requests.values()
        if opened.kind == "permission" and opened.request_id in declined
    )
