"""Messages sent while a turn runs: queueing, steering, listing and removing them."""

import asyncio

import pytest
from copilot import CopilotClient, CopilotSession
from copilot._jsonrpc import JsonRpcError
from copilot.session_events import (
    AssistantMessageData,
    PendingMessagesModifiedData,
    SessionIdleData,
    UserMessageData,
)

from tests.wire.copilot.harness import (
    Heard,
    Hold,
    Model,
    Waiting,
    approving,
    ask,
    calls,
    client_tool,
    history,
    reply_to,
    says,
    texts_of,
)

pytestmark = pytest.mark.anyio


async def busy(client: CopilotClient, model: Model, prompt: str) -> tuple[CopilotSession, Heard, Hold]:
    """A session whose first turn is held in its model call."""
    model.on(prompt, says(f"Answer to {prompt}"))
    hold = model.hold(prompt)
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send(prompt)
    await hold.until_reached()
    return session, heard, hold


async def said(session: CopilotSession) -> list[tuple[str, str]]:
    messages = await history(session, UserMessageData)
    return [(data.content, data.delivery.value if data.delivery else "") for data in messages]


async def test_idle_session_has_nothing_pending(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    pending = await session.rpc.queue.pending_items()
    assert (pending.items, pending.steering_messages) == ([], [])
    assert (await session.rpc.queue.remove_most_recent()).removed is False
    assert await ask(session, "session.queue.clear") is None


async def test_queued_messages_are_listed_in_order_of_arrival(client: CopilotClient, model: Model) -> None:
    session, _, hold = await busy(client, model, "Busy while listing")
    await session.send("Wait one")
    await session.send("Wait two", mode="enqueue")
    items = (await session.rpc.queue.pending_items()).items
    assert [item.display_text for item in items] == ["Wait one", "Wait two"]
    assert {item.kind.value for item in items} == {"message"}
    assert len({item.id for item in items}) == 2
    hold.release()


async def test_queued_messages_run_as_turns_of_their_own_and_there_is_one_idle_at_the_end(
    client: CopilotClient, model: Model
) -> None:
    for number in (1, 2, 3):
        model.on(f"Queued {number}", says(f"Answer {number}"))
    session, heard, hold = await busy(client, model, "Busy before the queue")
    for number in (1, 2, 3):
        await session.send(f"Queued {number}")
    hold.release()
    await heard.until(AssistantMessageData, lambda data: data.content == "Answer 3")
    await heard.until_idle()
    assert await said(session) == [
        ("Busy before the queue", "idle"),
        ("Queued 1", "queued"),
        ("Queued 2", "queued"),
        ("Queued 3", "queued"),
    ]
    assert len(heard.all(SessionIdleData)) == 1
    assert heard.types[-1] == "session.idle"
    assert (await session.rpc.queue.pending_items()).items == []


async def test_immediate_message_reaches_the_next_model_call_of_the_turn(client: CopilotClient, model: Model) -> None:
    model.on("Busy with a tool", calls("steered", value="x"), says("Steered."))
    waiting = Waiting()
    heard = Heard()
    session = await client.create_session(**approving(tools=[client_tool("steered", waiting)], on_event=heard))
    await session.send("Busy with a tool")
    await waiting.started()
    await session.send("And mind the gap", mode="immediate")
    pending = await session.rpc.queue.pending_items()
    assert pending.items == []
    assert pending.steering_messages == ["And mind the gap"]
    waiting.release.set_result("ok")
    await heard.until_idle()
    assert await said(session) == [("Busy with a tool", "idle"), ("And mind the gap", "steering")]
    messages = model.last_call_about("And mind the gap")["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user"]
    assert texts_of(messages[-1]).endswith("And mind the gap")
    assert len(heard.all(SessionIdleData)) == 1


async def test_immediate_message_to_an_idle_session_starts_a_turn(client: CopilotClient, model: Model) -> None:
    model.on("Immediately", says("At once."))
    session = await client.create_session(**approving())
    assert await reply_to(session, "Immediately", mode="immediate") == "At once."
    assert await said(session) == [("Immediately", "idle")]


async def test_most_recent_queued_message_can_be_removed(client: CopilotClient, model: Model) -> None:
    model.on("Stays queued", says("Stayed."))
    session, heard, hold = await busy(client, model, "Busy while taking back")
    await session.send("Stays queued")
    await session.send("Is taken back")
    assert (await session.rpc.queue.remove_most_recent()).removed is True
    assert [item.display_text for item in (await session.rpc.queue.pending_items()).items] == ["Stays queued"]
    hold.release()
    await heard.until(AssistantMessageData, lambda data: data.content == "Stayed.")
    await heard.until_idle()
    assert "Is taken back" not in [content for content, _ in await said(session)]


async def test_the_queue_can_be_cleared(client: CopilotClient, model: Model) -> None:
    session, heard, hold = await busy(client, model, "Busy while clearing")
    await session.send("Cleared one")
    await session.send("Cleared two")
    await session.rpc.queue.clear()
    assert (await session.rpc.queue.pending_items()).items == []
    hold.release()
    await heard.until_idle()
    assert [content for content, _ in await said(session)] == ["Busy while clearing"]


async def test_queue_changes_are_announced(client: CopilotClient, model: Model) -> None:
    session, heard, hold = await busy(client, model, "Busy while announcing")
    before = len(heard.all(PendingMessagesModifiedData))
    await session.send("Announced")
    await heard.until(PendingMessagesModifiedData, times=before + 1)
    before = len(heard.all(PendingMessagesModifiedData))
    await session.rpc.queue.clear()
    await heard.until(PendingMessagesModifiedData, times=before + 1)
    hold.release()
    await heard.until_idle()


async def test_every_client_sees_the_same_queue(client: CopilotClient, another: CopilotClient, model: Model) -> None:
    session, _, hold = await busy(client, model, "Busy for two")
    other = await another.resume_session(session.session_id, **approving())
    await session.send("From one")
    await other.send("From the other")
    for each in (session, other):
        items = (await each.rpc.queue.pending_items()).items
        assert [item.display_text for item in items] == ["From one", "From the other"]
    hold.release()


async def test_messages_beyond_the_queue_limit_are_refused_and_leave_no_trace(
    client: CopilotClient, model: Model
) -> None:
    session, _, hold = await busy(client, model, "Busy and full")

    async def send_many() -> None:
        for number in range(50):
            await session.send(f"One of many {number}")

    with pytest.raises(JsonRpcError):
        await send_many()
    waiting = (await session.rpc.queue.pending_items()).items
    assert [item.display_text for item in waiting] == [f"One of many {number}" for number in range(len(waiting))]
    await session.rpc.queue.clear()
    hold.release()


async def test_send_and_wait_while_busy_waits_for_its_own_answer(client: CopilotClient, model: Model) -> None:
    model.on("Mine among others", says("Yours."))
    session, heard, hold = await busy(client, model, "Busy before mine")
    mine = asyncio.create_task(reply_to(session, "Mine among others"))
    await heard.until(PendingMessagesModifiedData)
    hold.release()
    assert await mine == "Yours."
