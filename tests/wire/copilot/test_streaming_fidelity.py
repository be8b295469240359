"""Deltas are sent only to clients that asked for streaming, in order, and add up to the persisted text."""

import pytest
from copilot import CopilotClient
from copilot.session_events import (
    AssistantMessageData,
    AssistantMessageDeltaData,
    AssistantMessageStartData,
    AssistantReasoningDeltaData,
    AssistantStreamingDeltaData,
)

from tests.wire.copilot.harness import (
    Heard,
    Model,
    approving,
    calls,
    calls_all,
    client_tool,
    history,
    reply_to,
    says,
)

pytestmark = pytest.mark.anyio


def shown(heard: Heard, message_id: str | None = None) -> str:
    deltas = heard.all(AssistantMessageDeltaData)
    return "".join(data.delta_content for data in deltas if message_id in (None, data.message_id))


async def test_should_produce_delta_events_when_streaming_is_enabled(client: CopilotClient, model: Model) -> None:
    model.on("Count to five", says("1, 2, 3, 4, 5"))
    heard = Heard()
    session = await client.create_session(**approving(streaming=True, on_event=heard))
    await session.send("Count to five")
    await heard.until_idle()
    (said,) = heard.all(AssistantMessageData)
    assert said.content == "1, 2, 3, 4, 5"
    assert shown(heard, said.message_id) == said.content
    assert [data.message_id for data in heard.all(AssistantMessageStartData)] == [said.message_id]
    first, last = heard.types.index("assistant.message_delta"), heard.types.index("assistant.message")
    assert heard.types.index("assistant.message_start") < first < last
    call = model.last_call_about("Count to five")
    assert call["stream"] is True
    assert call["stream_options"] == {"include_usage": True}


async def test_should_not_produce_deltas_when_streaming_is_disabled(client: CopilotClient, model: Model) -> None:
    model.on("Do not count", says("No deltas here"))
    heard = Heard()
    session = await client.create_session(**approving(streaming=False, on_event=heard))
    await session.send("Do not count")
    await heard.until_idle()
    assert heard.all(AssistantMessageDeltaData) == []
    assert heard.all(AssistantStreamingDeltaData) == []
    assert [data.content for data in heard.all(AssistantMessageData)] == ["No deltas here"]
    assert not model.last_call_about("Do not count").get("stream")


async def test_streaming_is_off_by_default(client: CopilotClient, model: Model) -> None:
    model.on("Nothing was asked", says("Nothing streams"))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("Nothing was asked")
    await heard.until_idle()
    assert heard.all(AssistantMessageDeltaData) == []


async def test_should_produce_deltas_after_session_resume(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Before the stream", says("Before"))
    model.on("Stream after resuming", says("After the resume it streams"))
    first = await client.create_session(**approving(streaming=False))
    await reply_to(first, "Before the stream")
    await first.disconnect()
    heard = Heard()
    second = await another.resume_session(first.session_id, **approving(streaming=True, on_event=heard))
    await second.send("Stream after resuming")
    await heard.until_idle()
    assert shown(heard) == "After the resume it streams"


async def test_delta_is_sent_while_the_model_is_still_streaming(client: CopilotClient, model: Model) -> None:
    model.on("Speak slowly", says("first second third"))
    hold = model.hold("Speak slowly", piece=1)
    heard = Heard()
    session = await client.create_session(**approving(streaming=True, on_event=heard))
    await session.send("Speak slowly")
    delta = await heard.until(AssistantMessageDeltaData)
    assert delta.delta_content == "first"
    assert heard.all(AssistantMessageData) == []
    hold.release()
    await heard.until_idle()
    assert shown(heard) == "first second third"


async def test_sizes_add_up(client: CopilotClient, model: Model) -> None:
    model.on("Mind the size", says("grüße von überall"))
    heard = Heard()
    session = await client.create_session(**approving(streaming=True, on_event=heard))
    await session.send("Mind the size")
    await heard.until_idle()
    sizes = [data.total_response_size_bytes for data in heard.all(AssistantStreamingDeltaData)]
    assert sizes
    assert sizes == sorted(sizes)


async def test_each_step_streams_as_a_message_of_its_own(client: CopilotClient, model: Model) -> None:
    model.on("Speak, act, speak", calls_all(("act", {"value": "x"}), text="I will act."), says("I have acted."))
    heard = Heard()
    tool = client_tool("act", lambda arguments: "ok")
    session = await client.create_session(**approving(streaming=True, tools=[tool], on_event=heard))
    await session.send("Speak, act, speak")
    await heard.until_idle()
    first, second = heard.all(AssistantMessageData)
    assert first.message_id != second.message_id
    assert shown(heard, first.message_id) == first.content == "I will act."
    assert shown(heard, second.message_id) == second.content == "I have acted."


async def test_step_without_text_streams_nothing(client: CopilotClient, model: Model) -> None:
    model.on("Act without words", calls("quiet", value="x"), says("Done."))
    heard = Heard()
    tool = client_tool("quiet", lambda arguments: "ok")
    session = await client.create_session(**approving(streaming=True, tools=[tool], on_event=heard))
    await session.send("Act without words")
    await heard.until_idle()
    assert shown(heard) == "Done."


async def test_reasoning_streams_separately_from_the_text(client: CopilotClient, model: Model) -> None:
    model.on("Reason aloud", says("So be it.", reasoning="It might be so."))
    heard = Heard()
    session = await client.create_session(**approving(streaming=True, on_event=heard))
    await session.send("Reason aloud")
    await heard.until_idle()
    assert shown(heard) == "So be it."
    assert "".join(data.delta_content for data in heard.all(AssistantReasoningDeltaData)) == "It might be so."


async def test_all_clients_get_the_same_text(client: CopilotClient, another: CopilotClient, model: Model) -> None:
    words = " ".join(f"word{number}" for number in range(200))
    model.on("Show it to both", says(words))
    heard = [Heard(), Heard()]
    one = await client.create_session(**approving(streaming=True, on_event=heard[0]))
    await another.resume_session(one.session_id, **approving(streaming=True, on_event=heard[1]))
    await one.send("Show it to both")
    for each in heard:
        await each.until_idle()
        assert shown(each) == words


async def test_streamed_text_equals_the_history(client: CopilotClient, model: Model) -> None:
    text = "Line one\n\n\tTabbed \u2028 and \U0001f389 at the end "
    model.on("Odd characters", says(text, chunk_size=3))
    heard = Heard()
    session = await client.create_session(**approving(streaming=True, on_event=heard))
    await session.send("Odd characters")
    await heard.until_idle()
    (said,) = await history(session, AssistantMessageData)
    assert shown(heard) == said.content == text
