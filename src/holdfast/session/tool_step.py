"""The tool calls of a step: refuse each, ask about it, hand it to a client or a person, or start it here; then end the
step."""

from typing import Final

from holdfast.events import message, request, session, turn
from holdfast.events.body import Body
from holdfast.events.ids import RequestId
from holdfast.events.request import PermissionAsk
from holdfast.session import endings, intake, model_step, tool_results
from holdfast.session.actions import Action, Append, Interrupt, Opened, Pause, Release, RunTools
from holdfast.session.bounds import Bounds
from holdfast.session.inputs import CallFacts, Inputs
from holdfast.session.permissions import Rules, judge, needs_no_rule, session_rule
from holdfast.session.state import ModelReply, Phase, State, ToolCall, Turn, same_call_key

REPEATED_LINE: Final = (
    "You made the same tool call with the same arguments many times. Do something else, or answer with what you have."
)

MAX_TITLE_CHARACTERS: Final = 200


def run_tools(state: State, inputs: Inputs, current: Turn) -> Action:
    """The next move for the calls of the model's reply; the end of the step once each has a result."""
    reply = state.reply()
    if reply is None or not reply.unfinished():
        return _end_step(state, inputs, current, reply)
    if _repeats(reply, current, inputs.bounds) and "repeated call" in current.notes:
        return _end_repetition(state, inputs, current)
    written = Append()
    startable: list[ToolCall] = []
    allow = _rules(state, inputs, current)
    for call in reply.unfinished():
        _next_move(state, inputs, current, call, allow, written, startable)
    if written.events:
        return written
    if startable:
        return RunTools(tuple(startable))
    if inputs.work:
        return Pause()
    if state.phase is Phase.RUNNING_TOOLS or current.no_worker_noted:
        waiting = turn.TurnWaiting(turn_id=current.turn_id, reason="requests", request_ids=tuple(state.requests))
        return Append(events=[waiting])
    return Release()


def _end_step(state: State, inputs: Inputs, current: Turn, reply: ModelReply | None) -> Append:
    if reply is None or not reply.calls or current.last_step:
        events = model_step.after_answer(state, inputs, current, reply.text if reply else "")
        promotes = model_step.after_answer_promotions(events, state, inputs)
        return Append(events=events, promotes=promotes, drops_segments=True)
    ended: list[Body] = [turn.StepEnded(turn_id=current.turn_id, step=current.step)]
    if _ends_turn(state, reply) and not intake.is_steered(state, inputs, current):
        return Append(events=[*ended, endings.turn_ended(inputs, current, "completed")])
    if inputs.over_budget is not None:
        return endings.end_over_budget(state, inputs, current, inputs.over_budget)
    if _repeats(reply, current, inputs.bounds):
        ended.append(message.Noted(text=REPEATED_LINE, reason="repeated call"))
    return Append(
        events=[*ended, *model_step.next_step(state, inputs, current)],
        promotes=model_step.next_step_promotions(state, inputs, current),
    )


def _ends_turn(state: State, reply: ModelReply) -> bool:
    """Whether the model called a client tool that ends the turn."""
    terminal = {tool.name for tool in state.client_tools if tool.ends_turn}
    return any(call.name in terminal for call in reply.calls)


def _rules(state: State, inputs: Inputs, current: Turn) -> Rules:
    """The rules by which the calls of the step are judged; none if no call needs one."""
    unattended, asks_always = current.unattended, state.policy.asks_always
    asks = [facts.ask for facts in inputs.facts.values() if facts.ask]
    calls = sum(not needs_no_rule(ask, unattended=unattended, asks_always=asks_always) for ask in asks)
    if not calls:
        return Rules(())
    granted = (rule for rule in state.place_rules if rule in inputs.granted)
    return Rules([*state.allow, *granted, *inputs.readable], calls=calls)


def _next_move(
    state: State,
    inputs: Inputs,
    current: Turn,
    call: ToolCall,
    allow: Rules,
    written: Append,
    startable: list[ToolCall],
) -> None:
    """Add one call's next move to `written` or `startable`; neither while it runs or waits for an answer."""
    if call.tool_call_id in inputs.running or call.request_id is not None:
        return
    facts = inputs.facts[call.tool_call_id]
    if current.last_step:
        # The model had no tools in this call. Running one all the same would never end the turn.
        refused = tool_results.refusal(call.tool_call_id, tool_results.NO_MORE_ROUNDS, "denied")
        written.events.append(refused)
    elif call.attempts and not facts.repeatable:
        refused = tool_results.refusal(call.tool_call_id, tool_results.UNKNOWN_OUTCOME, "interrupted")
        written.events.append(refused)
    elif facts.where == "nowhere":
        refused = tool_results.refusal(call.tool_call_id, facts.error, facts.error_code, facts.error_origin, facts.code)
        written.events.append(refused)
    elif facts.ask and call.approved_for != f"{facts.ask.kind} {facts.ask.subject}":
        # An approval counts for its own subject only: a link may lead elsewhere by now.
        _check_permission(state, inputs, current, call, facts, facts.ask, allow, written, startable)
    else:
        _hand_out(inputs, call, facts, written, startable)


def _check_permission(
    state: State,
    inputs: Inputs,
    current: Turn,
    call: ToolCall,
    facts: CallFacts,
    ask: PermissionAsk,
    allow: Rules,
    written: Append,
    startable: list[ToolCall],
) -> None:
    asks_always = state.policy.asks_always
    match judge(ask, tool_name=call.name, allow=allow, unattended=current.unattended, asks_always=asks_always):
        case "allow":
            _hand_out(inputs, call, facts, written, startable)
        case "deny":
            written.events.append(tool_results.refusal(call.tool_call_id, tool_results.DENIED, "denied"))
        case "ask":
            request_id = inputs.id_of(RequestId)
            requested = request.PermissionRequested(
                request_id=request_id,
                tool_call_id=call.tool_call_id,
                tool_name=call.name,
                kind=ask.kind,
                subject=ask.subject,
                rule=session_rule(ask, call.name),
                details=ask.details,
            )
            title = f"{ask.kind} {ask.subject}"
            _open(written, requested, Opened(request_id, "permission", call.tool_call_id, title))


def _hand_out(inputs: Inputs, call: ToolCall, facts: CallFacts, written: Append, startable: list[ToolCall]) -> None:
    """Start the call here, or open the request by which a client or a person answers it."""
    if facts.where == "here":
        startable.append(call)
        return
    request_id = inputs.id_of(RequestId)
    if facts.where == "client":
        requested: Body = request.ExternalToolRequested(
            request_id=request_id, tool_call_id=call.tool_call_id, tool_name=call.name, arguments=call.arguments
        )
        _open(written, requested, Opened(request_id, "client_tool", call.tool_call_id, call.name))
    else:
        requested = request.UserInputRequested(
            request_id=request_id,
            tool_call_id=call.tool_call_id,
            question=facts.question,
            choices=facts.choices,
            allow_freeform=facts.allow_freeform,
        )
        _open(written, requested, Opened(request_id, "question", call.tool_call_id, facts.question))


def _open(written: Append, requested: Body, opened: Opened) -> None:
    title = opened.title
    if len(title) > MAX_TITLE_CHARACTERS:
        title = title[: MAX_TITLE_CHARACTERS - 1] + "…"
    written.events.append(requested)
    written.opens.append(Opened(opened.request_id, opened.kind, opened.tool_call_id, title))


def _repeats(reply: ModelReply, current: Turn, bounds: Bounds) -> bool:
    return any(current.same_calls.get(same_call_key(call), 0) > bounds.max_same_calls for call in reply.calls)


def _end_repetition(state: State, inputs: Inputs, current: Turn) -> Append | Interrupt:
    if inputs.running:
        return Interrupt()
    error = session.SessionError(
        error_type="repeated_call",
        message="The model kept making the same tool call after it was warned, so the turn was ended. "
        "Say what you want done differently.",
        retryable=True,
    )
    return endings.end_early(state, inputs, current, "error", endings.Ending(by="The turn was ended"), last=[error])
