"""Spans of real processes, received by a real collector."""

import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry import trace

from holdfast.cli.telemetry import span_export, wants_spans
from tests.http.world import Client, Model, Place, patience
from tests.observability.collector import Collector
from tests.wire.copilot import harness as copilot

pytestmark = pytest.mark.anyio

CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = trace.SpanContext(
    int(CALLER_TRACE, 16), int(CALLER_SPAN, 16), is_remote=False, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
)


async def until_ended(client: Client, session: str) -> str:
    """Wait for the session's turn to end; its id."""
    async with patience(), client.follow(session) as frames:
        async for frame in frames:
            if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                return str(frame.data["data"]["turnId"])
    raise AssertionError("the stream ended")


async def test_killed_turn_stays_one_trace_after_takeover(tmp_path: Path) -> None:
    """The turn waits, gets its answer, and its process is killed in the middle of the next model call. Only the spans
    that were open at that moment are lost."""
    async with Collector() as collector, Model() as model:
        place = Place(tmp_path, model)
        environ: dict[str, Any] = {**collector.environ, "HOLDFAST_LINGER_SECONDS": "0"}
        async with place.serve(**environ) as server, server.client() as client:
            session = await client.make(working_directory=str(place.work))
            await client.say(session, "a note please")
            (request,) = (await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]
            await collector.until(lambda: bool(collector.named("invoke_agent")))  # The session is released.
            model.hold(0)
            address = f"/v1/sessions/{session}/requests/{request['id']}"
            assert (await client.post(address, json={"decision": "approve"})).status_code == 200
            await model.until_held()
            await collector.until(lambda: bool(collector.named("execute_tool create")))
            await server.end(signal.SIGKILL)
        model.release()
        async with place.serve(**environ) as server, server.client() as client:
            turn = await until_ended(client, session)
            assert await server.end() == 0
        waiting, completed = collector.named("invoke_agent")
        (wrote,) = collector.named("execute_tool create")
        calls = collector.named("chat scripted")
    assert waiting.attributes["holdfast.turn.outcome"] == "waiting"
    assert completed.attributes["holdfast.turn.outcome"] == "completed"
    assert {span.trace for span in (waiting, completed, wrote, *calls)} == {turn.replace("-", "")}
    assert waiting.parent == completed.parent
    assert wrote.parent not in (waiting.span, completed.span)
    assert {span.parent for span in calls} == {waiting.span, completed.span}
    assert waiting.service == "holdfast-serve"


async def test_turn_links_to_the_request_that_started_it(tmp_path: Path) -> None:
    async with Collector() as collector, Model() as model:
        async with Place(tmp_path, model).serve(**collector.environ) as server, server.client() as client:
            session = await client.make()
            await client.post(
                f"/v1/sessions/{session}/stream",
                json={"text": "good morning"},
                headers={"traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-01", "x-request-id": "asked-1"},
            )
            assert await server.end() == 0
        (asked,) = collector.named("POST /v1/sessions/{session_id}/stream")
        (holding,) = collector.named("invoke_agent")
    assert (asked.trace, asked.parent) == (CALLER_TRACE, CALLER_SPAN)
    assert asked.attributes["http.response.status_code"] == 200
    assert asked.attributes["holdfast.request.id"] == "asked-1"
    assert holding.links == (asked.span,)
    assert holding.trace != CALLER_TRACE


async def test_copilot_turns_are_traced_and_named_in_the_log(tmp_path: Path) -> None:
    async with Collector() as collector, copilot.Model() as model:
        home = copilot.Home(tmp_path, model)
        model.on("good morning", copilot.says("Good morning to you."))
        async with (
            home.serve("--log-format", "json", **collector.environ) as server,
            copilot.connected(server.client()) as client,
        ):
            session = await client.create_session(**copilot.approving())
            with trace.use_span(trace.NonRecordingSpan(CALLER)):
                assert await copilot.reply_to(session, "good morning") == "Good morning to you."
        (holding,) = collector.named("invoke_agent")
    assert holding.service == "holdfast-copilot"
    assert holding.links == (CALLER_SPAN,)
    assert holding.attributes["holdfast.session.id"] == session.session_id
    log = (home.data / "logs" / "holdfast-copilot.log").read_bytes()
    (ended,) = [line for line in map(msgspec.json.decode, log.splitlines()) if "turn ended" in line["message"]]
    assert (ended["session_id"], ended["trace_id"]) == (session.session_id, holding.trace)
    assert b"good morning" not in log + collector.bodies


async def test_unreachable_collector_does_not_hold_up_shutdown(tmp_path: Path) -> None:
    gone: dict[str, Any] = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    async with Model() as model, Place(tmp_path, model).serve(**gone) as server, server.client() as client:
        session = await client.make()
        await client.say(session, "good morning")
        assert (await client.texts(session))[-1] == "Hello, world."
        assert await server.end() == 0


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://there"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://there"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://there"}, False),
    ],
)
def test_otel_variables_decide_whether_spans_are_exported(environ: dict[str, str], wanted: bool) -> None:
    assert wants_spans(environ) is wanted


def test_server_runs_with_a_warning_when_the_sdk_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.observability.exporter", None)
    with span_export("a test", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there"}):
        pass
    assert "holdfast[otel]" in capsys.readouterr().err
