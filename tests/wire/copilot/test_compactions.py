"""Compactions as the real client sees them: asked for, given up, told in its own types, and set by its own options."""

import pytest
from copilot import CopilotClient
from copilot.generated.rpc import SessionHistoryCompactRequest
from copilot.session_events import (
    SessionCompactionCompleteData,
    SessionCompactionStartData,
    SessionUsageInfoData,
)

from holdfast.models.model import TokenUsage
from tests.wire.copilot.harness import Heard, Model, approving, history, patience, reply_to, says

pytestmark = pytest.mark.anyio

LONG = "Noted. " * 300


async def test_a_client_compacts_its_session_and_every_client_is_told_how_it_went(
    client: CopilotClient, model: Model
) -> None:
    usage = TokenUsage(input_tokens=4_000, output_tokens=600, cache_read_tokens=3_000)
    model.on("Remember", says(LONG, usage=usage))
    session = await client.create_session(**approving())
    heard = Heard(session)
    async with patience():
        for number in range(3):
            await reply_to(session, f"Remember {number}")
        done = await session.rpc.history.compact(SessionHistoryCompactRequest(custom_instructions="Keep the numbers."))
        assert (done.success, done.messages_removed > 0, bool(done.summary_content)) == (True, True, True)
        (begun,) = await history(session, SessionCompactionStartData)
        (ended,) = await history(session, SessionCompactionCompleteData)
    assert begun.trigger is not None
    assert (begun.trigger.value, begun.token_limit, begun.current_tokens) == ("manual", 128_000, 4_600)
    assert (ended.success, ended.summary_content) == (True, done.summary_content)
    assert (ended.pre_compaction_tokens, ended.custom_instructions) == (4_600, "Keep the numbers.")
    assert ended.compaction_attempt_id == begun.compaction_attempt_id
    assert ended.compaction_tokens_used is not None
    measured = [event.data for event in heard.events if isinstance(event.data, SessionUsageInfoData)]
    assert [(info.current_tokens, info.token_limit) for info in measured] == [(4_600, 128_000)] * 3
    assert [info.messages_length for info in measured] == sorted({info.messages_length for info in measured})


async def test_there_is_nothing_to_compact_or_to_give_up_in_a_new_session(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    async with patience():
        done = await session.rpc.history.compact()
        assert (done.success, done.messages_removed, done.tokens_removed) == (False, 0, 0)
        assert (await session.rpc.history.cancel_background_compaction()).cancelled is False
        assert (await session.rpc.history.abort_manual_compaction()).aborted is False


async def test_the_thresholds_of_an_infinite_session_decide_when_it_compacts(
    client: CopilotClient, model: Model
) -> None:
    usage = TokenUsage(input_tokens=40_000, output_tokens=600)
    model.on("Fill it", says(LONG * 60, usage=usage))
    early = {"enabled": True, "background_compaction_threshold": 0.25, "buffer_exhaustion_threshold": 0.3}
    never = {"enabled": False, "background_compaction_threshold": 0.25, "buffer_exhaustion_threshold": 0.3}
    found = []
    async with patience():
        for options in (early, never):
            session = await client.create_session(**approving(infinite_sessions=options))
            for _ in range(3):
                await reply_to(session, "Fill it")
            found.append(await history(session, SessionCompactionStartData))
    assert {begun.trigger.value for begun in found[0] if begun.trigger} == {"threshold"}
    assert found[1] == []


async def test_a_threshold_that_is_no_fraction_is_refused(client: CopilotClient) -> None:
    with pytest.raises(Exception, match="parameters are not valid"):
        await client.create_session(**approving(infinite_sessions={"background_compaction_threshold": 80}))
