"""Messages and task news on their way from the inbox into the log: the events, and the promotions that belong to them.

Each function of events has a partner for promotions. A unit that writes the one must carry the other, so that an item
leaves the inbox in the commit that logs it."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.events import message, task
from holdfast.events.body import Body
from holdfast.events.ids import TurnId
from holdfast.events.inbox import InboxItem, Message, TaskNews
from holdfast.events.message import Delivery
from holdfast.events.role import RoleBounds
from holdfast.events.task import TaskNotice
from holdfast.session.actions import Promoted
from holdfast.session.inputs import Inputs
from holdfast.session.role import chooses_beyond, excess, narrowing
from holdfast.session.state import State, Turn, united

WaitingNews = tuple[InboxItem, TaskNotice]
WaitingMessage = tuple[InboxItem, Message]


class TurnTerms(NamedTuple):
    """The model that the messages of a turn chose, the bounds of all who have a part in the turn, and the model that it
    fell back to."""

    model: str | None = None
    bounds: tuple[RoleBounds, ...] = ()
    fallback: str | None = None

    def with_message(self, sent: Message) -> "TurnTerms":
        own = () if sent.bounds is None else (sent.bounds,)
        return self._replace(model=sent.model or self.model, bounds=united(self.bounds, own))

    def with_news(self, bounds: tuple[RoleBounds, ...]) -> "TurnTerms":
        return self._replace(bounds=united(self.bounds, bounds))

    def admit(self, state: State, newcomer: tuple[RoleBounds, ...]) -> bool:
        """Whether nothing in these terms, which are those with the newcomer, is beyond anyone's bounds. A session that
        has more than the newcomer may use is not changed in the middle of a turn."""
        if any(excess(state, each) for each in newcomer) or narrowing(state, *newcomer):
            return False
        models = (self.model, self.fallback)
        return not any(chooses_beyond(state, model, each) for model in models for each in self.bounds)


def terms_of(current: Turn) -> TurnTerms:
    return TurnTerms(current.model, current.bounds, current.fallback)


# News of tasks


def waiting_news(inputs: Inputs) -> list[WaitingNews]:
    """All task news in the inbox, in order of arrival."""
    return [(item, item.item.notice) for item in inputs.inbox if isinstance(item.item, TaskNews)]


def task_bounds(state: State, notice: TaskNotice) -> tuple[RoleBounds, ...]:
    """The bounds of the turn that started the task."""
    started = state.tasks.get(notice.task_id)
    return () if started is None else started.bounds


def joining_news(state: State, inputs: Inputs, terms: TurnTerms) -> tuple[list[WaitingNews], TurnTerms]:
    """The news that may join a turn with these terms, and its terms with them. Other news waits for a turn of its own.
    Silent news joins any turn: the model reads none of it."""
    found = []
    for item, notice in waiting_news(inputs):
        bounds = () if notice.silent else task_bounds(state, notice)
        joined = terms.with_news(bounds)
        if not bounds or joined.admit(state, bounds):
            found.append((item, notice))
            terms = joined
    return found, terms


def news(found: Iterable[WaitingNews]) -> list[Body]:
    """Task news as events."""
    return [task.TaskNotified(notice=notice) for _, notice in found]


def news_promotions(found: Iterable[WaitingNews]) -> list[Promoted]:
    """The promotions that belong to `news`."""
    return [Promoted(item.sequence, "told") for item, _ in found]


# Messages


def waiting_messages(state: State, inputs: Inputs) -> list[WaitingMessage]:
    """Every message in the inbox, in order of arrival, without a model that its sender may not choose."""
    return [(item, _held(state, item.item)) for item in inputs.inbox if isinstance(item.item, Message)]


def _held(state: State, sent: Message) -> Message:
    if sent.bounds is None or not chooses_beyond(state, sent.model, sent.bounds):
        return sent
    return msgspec.structs.replace(sent, model=None)


def joining_messages(state: State, waiting: Iterable[WaitingMessage], terms: TurnTerms) -> list[WaitingMessage]:
    """The messages that may join a turn with these terms. The others wait for a turn of their own."""
    found = []
    for item, sent in waiting:
        joined = terms.with_message(sent)
        if sent.delivery == "steer" and joined.admit(state, () if sent.bounds is None else (sent.bounds,)):
            found.append((item, sent))
            terms = joined
    return found


def joining(state: State, inputs: Inputs, current: Turn) -> tuple[list[WaitingNews], list[WaitingMessage]]:
    """The news and the messages that join the running turn at its next step."""
    told, terms = joining_news(state, inputs, terms_of(current))
    return told, joining_messages(state, waiting_messages(state, inputs), terms)


def is_steered(state: State, inputs: Inputs, current: Turn) -> bool:
    """Whether a message joins the running turn at its next step."""
    return bool(joining(state, inputs, current)[1])


def user_message(sent: Message, turn_id: TurnId, delivery: Delivery) -> message.UserMessage:
    """A message from the inbox as the event that the log keeps."""
    return message.UserMessage(
        message_id=sent.message_id,
        turn_id=turn_id,
        content=sent.text,
        delivery=delivery,
        model_text=sent.model_text,
        added=_added(sent),
        images=sent.images,
        attachments=sent.attachments,
        files=sent.files,
        agent_mode=sent.agent_mode,
        model=sent.model,
        thinking=sent.thinking,
        bounds=sent.bounds,
    )


def _added(sent: Message) -> str:
    page = sent.context.as_text() if sent.context else ""
    return f"{sent.added}\n\n{page}" if sent.added and page else sent.added or page
