"""From state and inputs to the next action. Pure: the same state and inputs always give the same action.

Deciding is the only way that a turn runs. After a crash the next holder folds the log and decides again, without
knowing that there was a crash. The order matters: first the inbox (accepted answers, then a stop, then a rewind), so
that an answer accepted before a stop counts; then whether this process may run the session at all; then whether its
context must become shorter; then the phase.
"""

from holdfast.events import turn
from holdfast.events.inbox import UnknownItem
from holdfast.session import compaction, endings, interventions, model_step, tool_step, turn_start
from holdfast.session.actions import Action, Append, Deny, Pause, Release
from holdfast.session.inputs import Inputs
from holdfast.session.state import Phase, State


def decide(state: State, inputs: Inputs) -> Action:
    """The next action of the session's holder. A new holder's first write begins with the record of its claim."""
    action = _decide(state, inputs)
    if action == Release() and any(isinstance(item.item, UnknownItem) for item in inputs.inbox):
        action = Release(for_newer=True)
    if isinstance(action, Release) and inputs.running and not action.for_another:
        action = Pause()  # A compaction goes on though nothing else is left to do.
    if inputs.takeover is None or state.turn is None:
        return action
    fence, node = inputs.takeover
    claimed = turn.Claimed(fence=fence, node=node)
    if isinstance(action, Append):
        action.events.insert(0, claimed)
        return action
    return Append(events=[claimed])


def _decide(state: State, inputs: Inputs) -> Action:
    if inputs.inbox and (action := interventions.intervene(state, inputs)):
        return action
    if not inputs.eligible:
        return turn_start.leave_to_another(state, inputs)
    if declined := interventions.declined_permissions(state, inputs):
        return Deny(declined)
    if compacting := compaction.compact(state, inputs):
        return compacting
    if state.turn is None:
        return turn_start.start_turn(state, inputs)
    if inputs.over_budget is not None and state.phase in (Phase.BETWEEN_STEPS, Phase.IDLE, Phase.CALLING_MODEL):
        return endings.end_over_budget(state, inputs, state.turn, inputs.over_budget)
    if inputs.claims_without_progress > inputs.bounds.max_claims_without_progress:
        return endings.end_poisoned(state, inputs, state.turn)
    match state.phase:
        case Phase.BETWEEN_STEPS | Phase.IDLE:
            events = model_step.next_step(state, inputs, state.turn)
            return Append(events=events, promotes=model_step.next_step_promotions(state, inputs, state.turn))
        case Phase.CALLING_MODEL:
            return model_step.call_model(state, inputs, state.turn)
        case Phase.RUNNING_TOOLS | Phase.WAITING:
            return tool_step.run_tools(state, inputs, state.turn)
