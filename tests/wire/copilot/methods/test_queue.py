"""Queued messages can be listed, edited, moved and removed before their turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wire.copilot.methods.world import Hold, Refused, Session, desk_at

pytestmark = pytest.mark.anyio


@pytest.fixture
def hold() -> Hold:
    return Hold()


@pytest.fixture
async def busy(tmp_path: Path, hold: Hold) -> AsyncIterator[Session]:
    """A session in the middle of a turn."""
    async with desk_at(tmp_path, "Yes.", gate=hold) as desk:
        session = await desk.client().session(streaming=True)
        await session.ask("send", prompt="Running")
        await hold.until_reached()
        yield session
        hold.release()
        await session.client.until("session.idle")


async def _send(session: Session, prompt: str, **more: str) -> str:
    return str((await session.ask("send", prompt=prompt, **more))["messageId"])


async def _texts(session: Session) -> list[str]:
    return [item["displayText"] for item in (await session.ask("queue.snapshot"))["items"]]


async def test_pending_messages_are_reported(busy: Session) -> None:
    assert await busy.ask("queue.hasPending") == {"hasPending": False}
    await _send(busy, "One")
    assert await busy.ask("queue.hasPending") == {"hasPending": True}


async def test_queued_message_is_removed_by_id_once(busy: Session) -> None:
    first = await _send(busy, "One")
    await _send(busy, "Two")
    assert await busy.ask("queue.removeAt", id=first) == {"removed": True}
    assert await busy.ask("queue.removeAt", id=first) == {"removed": False}
    assert await _texts(busy) == ["Two"]


async def test_queued_message_can_be_edited(busy: Session, hold: Hold) -> None:
    first = await _send(busy, "One")
    assert await busy.ask("queue.updateText", id=first, prompt="Uno") == {"updated": True}
    assert await busy.ask("queue.updateText", id="missing", prompt="Uno") == {"updated": False}
    hold.release()
    assert (await busy.client.until("user.message", lambda data: data["messageId"] == first))["content"] == "Uno"


@pytest.mark.parametrize(
    ("place", "order"),
    [(0, ["C", "A", "B"]), (1, ["A", "C", "B"]), (2, ["A", "B", "C"]), (99, ["A", "B", "C"]), (-1, ["C", "A", "B"])],
)
async def test_queued_message_is_moved_and_steering_messages_stay(busy: Session, place: int, order: list[str]) -> None:
    await _send(busy, "A")
    await _send(busy, "Steer", mode="immediate")
    await _send(busy, "B")
    moved = await _send(busy, "C")
    changed = await busy.ask("queue.moveItem", id=moved, toPosition=place)
    assert changed == {"changed": order != ["A", "B", "C"]}
    assert await _texts(busy) == order
    assert (await busy.ask("queue.snapshot"))["steeringMessages"] == ["Steer"]


async def test_missing_message_is_not_moved(busy: Session) -> None:
    assert await busy.ask("queue.moveItem", id="missing", toPosition=0) == {"changed": False}


async def test_queued_message_is_withdrawn_if_its_text_is_the_expected_one(busy: Session) -> None:
    first = await _send(busy, "One")
    await busy.ask("queue.updateText", id=first, prompt="Edited")
    told = await busy.ask("queue.withdrawMessage", messageId=first, expectedPrompt="One")
    assert told == {"removed": False, "interrupted": False}
    told = await busy.ask("queue.withdrawMessage", messageId=first, expectedPrompt="Edited")
    assert told == {"removed": True, "interrupted": False}
    assert await _texts(busy) == []


async def test_turn_is_interrupted_with_or_without_its_queue(busy: Session, hold: Hold) -> None:
    await _send(busy, "Dropped")
    assert await busy.ask("interruptMainTurn") == {"interrupted": True}
    assert await busy.ask("queue.hasPending") == {"hasPending": False}
    assert await busy.ask("interruptMainTurn") == {"interrupted": False}
    hold.hold()
    await _send(busy, "Running again")
    await hold.until_reached()
    await _send(busy, "Kept")
    assert await busy.ask("interruptMainTurn", flushQueued=True) == {"interrupted": True}
    hold.release()
    await busy.client.until("user.message", lambda data: data["content"] == "Kept")


async def test_list_of_one_message_is_sent(session: Session) -> None:
    sent = await session.ask("sendMessages", messages=[{"prompt": "Hello"}], wait=True)
    (said,) = session.client.data("user.message")
    assert sent == {"messageIds": [said["messageId"]]}
    assert session.client.data("session.idle") != []


@pytest.mark.parametrize("messages", [[], [{"prompt": "One"}, {"prompt": "Two"}]])
async def test_several_messages_in_one_turn_are_refused_as_a_whole(
    session: Session, messages: list[dict[str, str]]
) -> None:
    with pytest.raises(Refused, match="Send one message at a time"):
        await session.ask("sendMessages", messages=messages)
    assert await session.ask("queue.hasPending") == {"hasPending": False}


@pytest.mark.parametrize("verb", ["insertAt", "duplicateAt", "sendNow", "setDrainPaused", "appendSteering"])
async def test_other_queue_methods_are_refused(session: Session, verb: str) -> None:
    with pytest.raises(Refused, match="This way of changing the queue is not supported by this runtime"):
        await session.ask(f"queue.{verb}", id="x", paused=True, position=0)
