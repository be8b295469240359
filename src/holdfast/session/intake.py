"""Messages and task news on their way from the inbox into the log: the events, and the promotions that belong to them.

Each function of events has a partner for promotions. A unit that writes the one must carry the other, so that an item
leaves the inbox in the commit that logs it."""

from collections.abc import Sequence

from holdfast.events import message, task
from holdfast.events.body import Body
from holdfast.events.ids import TurnId
from holdfast.events.inbox import InboxItem, Message, TaskNews
from holdfast.events.message import Delivery
from holdfast.session.actions import Promoted
from holdfast.session.inputs import Inputs
from holdfast.session.role import excess, narrowing
from holdfast.session.state import State


def news(inputs: Inputs) -> list[Body]:
    """The task news in the inbox, as events."""
    return [task.TaskNotified(notice=item.item.notice) for item in inputs.inbox if isinstance(item.item, TaskNews)]


def news_promotions(inputs: Inputs) -> list[Promoted]:
    """The promotions that belong to `news`."""
    return [Promoted(item.sequence, "told") for item in inputs.inbox if isinstance(item.item, TaskNews)]


def steering(state: State, inputs: Inputs, turn_id: TurnId) -> list[Body]:
    """The messages that steer the running turn, as events."""
    return [user_message(sent, turn_id, "steering") for _, sent in _steering_items(state, inputs)]


def steering_promotions(state: State, inputs: Inputs) -> list[Promoted]:
    """The promotions that belong to `steering`."""
    return [Promoted(item.sequence, "steering") for item, _ in _steering_items(state, inputs)]


def waiting_messages(inputs: Inputs) -> list[tuple[InboxItem, Message]]:
    """Every message in the inbox, in order of arrival."""
    return [(item, item.item) for item in inputs.inbox if isinstance(item.item, Message)]


def joins(state: State, sent: Message) -> bool:
    """Whether a message may join a turn that another one opened. A session that has more than the sender may use is
    not changed in the middle of a turn: the message waits for a turn of its own."""
    if sent.delivery != "steer":
        return False
    return sent.bounds is None or not (excess(state, sent.bounds) or narrowing(state, sent.bounds))


def _steering_items(state: State, inputs: Inputs) -> Sequence[tuple[InboxItem, Message]]:
    return [(item, sent) for item, sent in waiting_messages(inputs) if joins(state, sent)]


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
        agent_mode=sent.agent_mode,
        model=sent.model,
        thinking=sent.thinking,
    )


def _added(sent: Message) -> str:
    page = sent.context.as_text() if sent.context else ""
    return f"{sent.added}\n\n{page}" if sent.added and page else sent.added or page
