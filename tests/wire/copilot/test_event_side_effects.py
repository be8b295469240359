"""Calls that change a session cause events."""

from typing import Any

import pytest
from copilot import CopilotClient
from copilot.rpc import (
    ModelSetReasoningEffortRequest,
    ModelSwitchToRequest,
    ModeSetRequest,
    NameSetRequest,
    PlanUpdateRequest,
)
from copilot.session_events import (
    SessionMode,
    SessionModeChangedData,
    SessionModelChangeData,
    SessionPlanChangedData,
    SessionTitleChangedData,
)

from tests.wire.copilot.harness import Heard, Model, approving, history, reply_to, says

pytestmark = pytest.mark.anyio


async def test_a_new_name_is_announced_and_a_later_prompt_does_not_change_it(
    client: CopilotClient, model: Model
) -> None:
    model.on("A prompt after the name", says("Yes."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.rpc.name.set(NameSetRequest(name="SDK test session"))
    assert (await heard.until(SessionTitleChangedData)).title == "SDK test session"
    await reply_to(session, "A prompt after the name")
    assert (await session.rpc.name.get()).name == "SDK test session"


async def test_a_switch_of_the_model_is_announced_and_kept(client: CopilotClient) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    result = await session.rpc.model.switch_to(ModelSwitchToRequest(model_id="gpt-5.4", reasoning_effort="high"))
    assert result.model_id == "gpt-5.4"
    change = await heard.until(SessionModelChangeData, lambda data: data.new_model == "gpt-5.4")
    assert change.reasoning_effort == "high"
    kept = [data.new_model for data in await history(session, SessionModelChangeData)]
    assert kept[-1] == "gpt-5.4"


async def test_a_new_mode_is_announced(client: CopilotClient) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.rpc.mode.set(ModeSetRequest(mode=SessionMode.PLAN))
    changed = await heard.until(SessionModeChangedData)
    assert (changed.previous_mode.value, changed.new_mode.value) == ("interactive", "plan")


async def test_a_plan_is_announced_when_it_is_made_changed_and_deleted(client: CopilotClient) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.rpc.plan.update(PlanUpdateRequest(content="# Plan"))
    await session.rpc.plan.update(PlanUpdateRequest(content="# Better plan"))
    await session.rpc.plan.delete()
    await heard.until(SessionPlanChangedData, times=3)
    assert [data.operation.value for data in heard.all(SessionPlanChangedData)] == ["create", "update", "delete"]


async def test_changes_of_one_client_are_announced_to_the_other(client: CopilotClient, another: CopilotClient) -> None:
    heard = Heard()
    session = await client.create_session(**approving())
    await another.resume_session(session.session_id, **approving(on_event=heard))
    await session.rpc.name.set(NameSetRequest(name="Heard elsewhere"))
    assert (await heard.until(SessionTitleChangedData)).title == "Heard elsewhere"


async def test_the_reasoning_effort_can_be_set_alone(client: CopilotClient, model: Model) -> None:
    model.on("Think hard", says("Hm."))
    session = await client.create_session(**approving())
    result: Any = await session.rpc.model.set_reasoning_effort(ModelSetReasoningEffortRequest(reasoning_effort="high"))
    assert result.reasoning_effort == "high"
    assert (await session.rpc.model.get_current()).reasoning_effort == "high"
    await reply_to(session, "Think hard")
    assert model.last_call_about("Think hard")["reasoning_effort"] == "high"
