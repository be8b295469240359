"""How a turn starts: by a message, or by task news alone."""

from typing import Final

from holdfast.events import session, turn
from holdfast.events.body import Body
from holdfast.events.ids import MessageId, TurnId
from holdfast.events.inbox import Compact, InboxItem, Message
from holdfast.events.message import Delivery
from holdfast.session import intake
from holdfast.session.actions import Append, Promoted, Release
from holdfast.session.compaction import undone_by
from holdfast.session.endings import over_budget
from holdfast.session.fold import NO_WORKER
from holdfast.session.inputs import Inputs
from holdfast.session.role import excess, narrowing
from holdfast.session.state import State

TITLE_CHARACTERS: Final = 60

NO_WORKER_LINE: Final = (
    "This message waits: no process is running that has this session's tools and can use its model. Start one, or "
    "choose another model."
)

BEYOND_MESSAGE: Final = (
    "This session now {} that the sender of this message may not choose, so the message was not run. Ask an admin of "
    "this server to send it, or fork the session: the copy has what you may have."
)

BEYOND_TASK: Final = (
    "A background command ended. This session now {} that the person it was started for may not choose, so the model "
    "was not called. It reads of the command with the next message."
)


def start_turn(state: State, inputs: Inputs) -> Append | Release:
    """Start a turn with the first waiting message. Later messages that would steer it, and task news, join it if the
    turn is within their bounds. The session is held to the bounds of the sender: it may have got more since the
    message was accepted."""
    waiting = intake.waiting_messages(state, inputs)
    if not waiting:
        return wake(state, inputs)
    item, opening = waiting[0]
    records: list[Body] = []
    if opening.bounds is not None:
        if beyond := excess(state, opening.bounds):
            return _end_at_once(inputs, item, opening, beyond)
        records = narrowing(state, opening.bounds)
    told, terms = intake.joining_news(state, inputs, intake.TurnTerms().with_message(opening))
    joining = [waiting[0], *intake.joining_messages(state, waiting[1:], terms)]
    turn_id = inputs.id_of(TurnId)
    unattended = all(sent.unattended for _, sent in joining)
    started = turn.TurnStarted(turn_id=turn_id, unattended=unattended, prompt=_first_prompt(state, inputs))
    begun = Append(
        events=[*records, started, *intake.news(told)],
        promotes=intake.news_promotions(told),
        supposes_head=True,
    )
    if opening.rewinds_to is not None:
        # Right before the turn: `replaced_turn` looks there.
        kept = min(opening.rewinds_to, state.head)
        begun.events[len(records) : len(records)] = [*undone_by(state, kept), session.Truncated(kept=kept)]
    for item, sent in joining:
        delivery: Delivery = "queued" if item.while_running else "idle"
        begun.events.append(intake.user_message(sent, turn_id, delivery))
        begun.promotes.append(Promoted(item.sequence, delivery))
    if not state.title:
        title = title_from(opening.text) if state.policy.shortens_title else opening.text
        begun.events.append(session.TitleChanged(title=title[: inputs.bounds.max_name_characters]))
    begun.events += _first_step(inputs, turn_id)
    return begun


def _first_step(inputs: Inputs, turn_id: TurnId) -> list[Body]:
    """The first model call or, if there is no money for it, the end of the turn."""
    if inputs.over_budget is None:
        return [turn.StepStarted(turn_id=turn_id, step=1, message_id=inputs.id_of(MessageId))]
    return [over_budget(inputs.over_budget), turn.TurnEnded(turn_id=turn_id, reason="error")]


def _end_at_once(inputs: Inputs, item: InboxItem, opening: Message, beyond: str) -> Append:
    """The turn of a message whose sender may no longer use the session: it ends with an error, and nothing is run."""
    turn_id = inputs.id_of(TurnId)
    delivery: Delivery = "queued" if item.while_running else "idle"
    return Append(
        events=[
            turn.TurnStarted(turn_id=turn_id, unattended=opening.unattended),
            intake.user_message(opening, turn_id, delivery),
            _beyond(BEYOND_MESSAGE.format(beyond)),
            turn.TurnEnded(turn_id=turn_id, reason="error"),
        ],
        promotes=[Promoted(item.sequence, delivery)],
        supposes_head=True,
    )


def _beyond(text: str) -> session.SessionError:
    return session.SessionError(error_type="session_beyond_role", message=text, retryable=False)


def wake(state: State, inputs: Inputs) -> Append | Release:
    """Start one turn for all task news in the inbox whose tasks have the same bounds, within these bounds. After many
    such turns in a row the news waits for a person: a model and its tasks must not keep each other busy for ever."""
    waiting = intake.waiting_news(inputs)
    audible = [notice for _, notice in waiting if not notice.silent]
    if not waiting or (audible and state.woken_turns >= inputs.bounds.max_woken_turns):
        return Release()
    if not audible:
        return Append(events=intake.news(waiting), promotes=intake.news_promotions(waiting), supposes_head=True)
    bounds = intake.task_bounds(state, audible[0])
    told = [found for found in waiting if found[1].silent or intake.task_bounds(state, found[1]) == bounds]
    tasks = [state.tasks.get(notice.task_id) for _, notice in told if not notice.silent]
    turn_id = inputs.id_of(TurnId)
    unattended = all(known is not None and known.unattended for known in tasks)
    started = turn.TurnStarted(turn_id=turn_id, unattended=unattended, woken=True, prompt=_first_prompt(state, inputs))
    begun = Append(events=[started, *intake.news(told)], promotes=intake.news_promotions(told), supposes_head=True)
    if beyond := next(filter(None, (excess(state, each) for each in bounds)), None):
        begun.events += [_beyond(BEYOND_TASK.format(beyond)), turn.TurnEnded(turn_id=turn_id, reason="error")]
    else:
        begun.events[:0] = narrowing(state, *bounds)
        begun.events += _first_step(inputs, turn_id)
    return begun


def _first_prompt(state: State, inputs: Inputs) -> str | None:
    """A session keeps the prompt of its first turn."""
    return inputs.prompt if inputs.prompt and not state.prompt else None


def leave_to_another(state: State, inputs: Inputs) -> Append | Release:
    """This process may not run the session, and no other came for a minute. Say so once in the log, then release."""
    if state.turn and not state.turn.no_worker_noted:
        return Append(events=[turn.TurnWaiting(turn_id=state.turn.turn_id, reason="no eligible worker")])
    has_message = bool(intake.waiting_messages(state, inputs))
    if state.turn is None and has_message and not state.no_worker_noted:
        return Append(events=[session.SessionInfo(info_type=NO_WORKER, message=NO_WORKER_LINE)])
    compacts = state.compaction is not None or any(isinstance(item.item, Compact) for item in inputs.inbox)
    if state.turn is None and not has_message and not compacts and isinstance(wake(state, inputs), Release):
        return Release()  # Nothing waits for another process either: left runnable, it would count as a turn in line.
    return Release(for_another=True)


def title_from(text: str) -> str:
    """The first words of a message, as a title."""
    words = " ".join(text.split())
    if len(words) <= TITLE_CHARACTERS:
        return words
    return words[:TITLE_CHARACTERS].rsplit(" ", 1)[0] + "…"
