"""The model call of a step: its attempts and retries, what follows its answer, and the start of the next step."""

from typing import Final

from holdfast.events import message, session, turn
from holdfast.events.body import Body
from holdfast.events.ids import MessageId
from holdfast.events.message import SealCause
from holdfast.session import compaction, endings, intake
from holdfast.session.actions import Append, CallModel, Pause, Promoted
from holdfast.session.bounds import Bounds
from holdfast.session.fold import TOO_LONG
from holdfast.session.inputs import MODEL, Inputs
from holdfast.session.role import may_use
from holdfast.session.state import CallFailure, State, Turn

EMPTY_LINE: Final = (
    "You ended without a visible answer. Sum up for the user, in a line or two, what was done and found."
)
LAST_ROUND_LINE: Final = "This is the last round of this turn: sum up what was done, without calling tools."
UNREACHABLE: Final = frozenset(
    ("model_unreachable", "model_timeout", "model_cut", "model_rate_limited", "model_unavailable")
)
"""The failures after whose retries another model is asked: the model can't be reached, or is overloaded."""

FALLBACK: Final = "model_fallback"
"""The type of the line that tells readers so."""

CLOSING_LINE: Final = "(The model ended this turn without an answer.)"


def call_model(state: State, inputs: Inputs, current: Turn) -> Append | CallModel | Pause:
    """Make the step's model call, make it again after a failure or a crash, or give up."""
    if MODEL in inputs.running:
        return Pause()
    failure = current.failure
    if compaction.must_wait(state, inputs):
        return Pause()
    if failure and _gives_up(state, current, inputs.bounds):
        if (model := _usable_fallback(inputs, current)) is not None and failure.code in UNREACHABLE:
            return _fall_back(state, current, failure, model)
        error = session.SessionError(
            error_type=failure.code,
            message=failure.message,
            retryable=failure.retryable,
            status_code=failure.status_code,
        )
        return endings.end_early(state, inputs, current, "error", last=[error])
    if inputs.shown:
        failed = failure is not None and failure.message_id == current.message_id
        cause: SealCause = "provider error" if failed else "crash"
        events = endings.sealed(current.message_id, inputs.shown, inputs.id_of(MessageId), cause)
        return Append(events=events, drops_segments=True)
    delay = 0.0 if failure is None else _delay_before_retry(current, inputs.bounds)
    return CallModel(current.message_id, current.attempts + 1, delay)


def _usable_fallback(inputs: Inputs, current: Turn) -> str | None:
    """The model that the turn may fall back to: nobody in it gets a model that they may not choose. None: the turn has
    its fall-back already, or there is none for it."""
    model = inputs.fallback
    if model is None or current.fallback is not None:
        return None
    return model if all(may_use(model, each) for each in current.bounds) else None


def _fall_back(state: State, current: Turn, failure: CallFailure, model: str) -> Append:
    """Use another model for the rest of the turn, and say so."""
    first = state.model_now() or "the model"
    fell_back = turn.FellBack(turn_id=current.turn_id, from_model=first, to_model=model, error_code=failure.code)
    line = f"{first} does not answer ({failure.message}). The rest of this turn uses {model}."
    return Append(events=[fell_back, session.SessionInfo(info_type=FALLBACK, message=line)])


def _gives_up(state: State, current: Turn, bounds: Bounds) -> bool:
    failure = current.failure
    if failure is None or (current.fallback is not None and not current.failures_since_answer):
        return False  # The fall-back has not been asked yet.
    if failure.code == TOO_LONG and not compaction.is_refused(state):
        return False  # The context is shorter now.
    if failure.code == TOO_LONG and current.window_found and current.too_long == 1:
        return False  # Nothing can be left out, but the answer that is asked for can be shorter.
    too_long = (failure.retry_after_ms or 0) > bounds.max_retry_after_seconds * 1000
    return not failure.retryable or too_long or current.failures_since_answer >= bounds.max_model_attempts


def _delay_before_retry(current: Turn, bounds: Bounds) -> float:
    """Exponential backoff, but never less than the provider asked for; none after the context was shortened."""
    if current.failure is not None and current.failure.code == TOO_LONG:
        return 0
    if not current.failures_since_answer:
        return 0  # The fall-back is asked at once.
    backoff = bounds.backoff_seconds * 2.0 ** (current.failures_since_answer - 1)
    retry_after = (current.failure.retry_after_ms or 0) / 1000 if current.failure else 0
    return max(min(backoff, bounds.max_backoff_seconds), retry_after)


def after_answer(state: State, inputs: Inputs, current: Turn, text: str) -> list[Body]:
    """The events that follow an answer without tool calls: the end of the turn, or another step."""
    ended = turn.StepEnded(turn_id=current.turn_id, step=current.step)
    if not text.strip():
        is_last = "empty answer" in current.notes or current.last_step or inputs.over_budget is not None
        if is_last or not state.policy.requests_visible_answer:
            return [ended, *_closing_line(inputs, current), endings.turn_ended(inputs, current, "completed")]
        return [ended, message.Noted(text=EMPTY_LINE, reason="empty answer"), *step(inputs, current)]
    if inputs.over_budget is None and intake.is_steered(state, inputs, current):
        return [ended, *next_step(state, inputs, current)]
    return [ended, endings.turn_ended(inputs, current, "completed")]


def after_answer_promotions(events: list[Body], state: State, inputs: Inputs) -> list[Promoted]:
    """The promotions that belong to the events of `after_answer`."""
    is_steered = any(isinstance(body, message.UserMessage) for body in events)
    return next_step_promotions(state, inputs, state.turn) if is_steered and state.turn is not None else []


def next_step(state: State, inputs: Inputs, current: Turn) -> list[Body]:
    """Task news and steering messages, then the start of the next model call."""
    told, sent = intake.joining(state, inputs, current)
    messages = [intake.user_message(found, current.turn_id, "steering") for _, found in sent]
    return [*intake.news(told), *messages, *step(inputs, current)]


def next_step_promotions(state: State, inputs: Inputs, current: Turn) -> list[Promoted]:
    """The promotions that belong to `next_step`."""
    told, sent = intake.joining(state, inputs, current)
    return [*intake.news_promotions(told), *(Promoted(item.sequence, "steering") for item, _ in sent)]


def step(inputs: Inputs, current: Turn) -> list[Body]:
    """The start of the next model call. The last one that a turn may have is told so, and gets no tools."""
    number = current.step + 1
    last = number > inputs.bounds.max_rounds
    started = turn.StepStarted(turn_id=current.turn_id, step=number, message_id=inputs.id_of(MessageId), last=last)
    if last and "last round" not in current.notes:
        return [message.Noted(text=LAST_ROUND_LINE, reason="last round"), started]
    return [started]


def _closing_line(inputs: Inputs, current: Turn) -> list[Body]:
    """A last line by the runtime, because every turn ends visibly."""
    message_id = inputs.id_of(MessageId)
    number = current.step + 1
    return [
        turn.StepStarted(turn_id=current.turn_id, step=number, message_id=message_id),
        message.AssistantMessage(
            message_id=message_id, blocks=(message.TextBlock(text=CLOSING_LINE),), model="holdfast"
        ),
        turn.StepEnded(turn_id=current.turn_id, step=number),
    ]
