"""Spans of turns: what they record, what they leave out, and that a turn is one trace in whichever process it runs."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Runtime, tool
from holdfast.events.ids import TurnId
from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.observability.exporter import sampler
from holdfast.observability.spans import trace_id_of, tracer, turn_context
from tests.observability.conftest import Spans
from tests.story.scripts import calls, says

pytestmark = pytest.mark.anyio

PROMPT = "tell me of the heron"
SECRET = "planted-secret-1234567890"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "spans.db"


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def replies(*given: Reply) -> ScriptedModel:
    return ScriptedModel(Script(rules=(Rule(replies=given),)))


async def test_turn_is_a_trace_with_its_model_calls(spans: Spans, database: Path) -> None:
    usage = TokenUsage(input_tokens=7, output_tokens=3, cache_read_tokens=2, reasoning_tokens=1, cost_microdollars=40)
    async with Runtime(database=database, model=replies(Reply(text="It is grey.", usage=usage))) as runtime:
        session = await runtime.session("birds")
        turn = await session.run(PROMPT)
    (chat,) = spans.named("chat scripted")
    (holding,) = spans.named("invoke_agent")
    assert trace_of(chat) == trace_of(holding) == turn.turn_id.replace("-", "")
    assert parent_of(chat) == holding.context.span_id
    assert parent_of(holding) == turn_context(turn.turn_id).span_id
    assert chat.kind is SpanKind.CLIENT
    said = of(chat)
    assert said.pop("gen_ai.response.time_to_first_chunk") >= 0
    assert said.pop("holdfast.message.id")
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "birds",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 1,
        "holdfast.cost_microdollars": 40,
        "holdfast.session.id": "birds",
        "holdfast.turn.id": turn.turn_id,
        "holdfast.attempt": 1,
    }
    held = of(holding)
    assert held["gen_ai.operation.name"] == "invoke_agent"
    assert held["holdfast.turn.outcome"] == "completed"
    assert (held["gen_ai.usage.input_tokens"], held["gen_ai.usage.output_tokens"]) == (7, 3)
    assert (held["holdfast.session.id"], held["holdfast.turn.id"]) == ("birds", turn.turn_id)


async def test_spans_hold_no_message_text_by_default(spans: Spans, database: Path) -> None:
    @tool(permission="allow")
    def look(where: str) -> str:
        return "a grey one"

    async with Runtime(database=database, model=says(calls("look", where="reeds"), "Seen."), tools=[look]) as runtime:
        await (await runtime.session()).run(PROMPT)
    assert spans.named("execute_tool look")
    for text in ("heron", "reeds", "grey", "Seen"):
        assert text not in spans.text()


async def test_spans_hold_message_text_without_secrets_when_enabled(spans: Spans, database: Path) -> None:
    @tool(permission="allow")
    def look(where: str) -> str:
        return f"a grey one, {SECRET}"

    environ = {"HOLDFAST_TRACE_CONTENT": "on", "PLANTED_API_KEY": SECRET}
    model = says(calls("look", where="reeds"), "Seen.")
    async with Runtime(database=database, model=model, tools=[look], environ=environ) as runtime:
        await (await runtime.session()).run(f"{PROMPT} {SECRET}")
    (looked,) = spans.named("execute_tool look")
    assert "reeds" in of(looked)["gen_ai.tool.call.arguments"]
    assert of(looked)["gen_ai.tool.call.result"] == "a grey one, [redacted]"
    last = of(spans.named("chat scripted")[-1])
    assert "heron" in last["gen_ai.input.messages"]
    assert "Seen." in last["gen_ai.output.messages"]
    assert SECRET not in spans.text()


async def test_spans_that_a_tool_makes_are_children_of_its_span(spans: Spans, database: Path) -> None:
    @tool(permission="allow")
    async def works() -> str:
        with trace.get_tracer("of the tool").start_as_current_span("inside"):
            return "done"

    @tool(permission="allow")
    def fails() -> str:
        raise ValueError("no")

    model = replies(Reply(tool_calls=(ScriptedCall("works", {}), ScriptedCall("fails", {}))), Reply(text="So."))
    async with Runtime(database=database, model=model, tools=[works, fails]) as runtime:
        turn = await (await runtime.session()).run("go")
    (holding,) = spans.named("invoke_agent")
    (worked,), (failed,), (inside,) = (
        spans.named("execute_tool works"),
        spans.named("execute_tool fails"),
        spans.named("inside"),
    )
    assert parent_of(worked) == parent_of(failed) == holding.context.span_id
    assert parent_of(inside) == worked.context.span_id
    assert {trace_of(span) for span in spans.all()} == {turn.turn_id.replace("-", "")}
    assert of(worked)["gen_ai.tool.name"] == "works"
    assert of(worked)["gen_ai.tool.call.id"]
    assert worked.status.status_code is StatusCode.UNSET
    assert (of(failed)["error.type"], failed.status.status_code) == ("failed", StatusCode.ERROR)


async def test_waiting_turn_has_no_open_span_and_resumes_its_trace(
    spans: Spans, database: Path, tmp_path: Path
) -> None:
    model = says(calls("create", path="notes.txt", file_text="Hi"), "Written.")
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session("notes", working_directory=str(tmp_path))
        turn = await session.run("Write", message_id="m-1")
        assert turn.reason == "waiting"
    (before,) = spans.named("invoke_agent")
    assert of(before)["holdfast.turn.outcome"] == "waiting"
    async with Runtime(database=database, model=model) as another:
        session = another.open("notes")
        (request,) = await session.requests()
        await session.approve(request.id)
        await session.result_of("m-1")
    _, after = spans.named("invoke_agent")
    assert of(after)["holdfast.turn.outcome"] == "completed"
    assert of(after)["holdfast.fence"] > of(before)["holdfast.fence"]
    assert trace_of(after) == trace_of(before) == turn.turn_id.replace("-", "")
    assert parent_of(after) == parent_of(before)
    (wrote,) = spans.named("execute_tool create")
    assert parent_of(wrote) == after.context.span_id


async def test_stop_ends_the_open_spans(spans: Spans, database: Path) -> None:
    speaking, never = asyncio.Event(), asyncio.Event()

    async def stands_still(piece: int) -> None:
        if piece == 2:
            speaking.set()
            await never.wait()

    async with Runtime(database=database, model=says("One two three", gate=stands_still)) as runtime:
        session = await runtime.session()
        sent = await session.send("Count")
        await speaking.wait()
        await session.stop()
        assert (await session.result_of(sent.message_id)).reason == "stopped"
    (chat,), (holding,) = spans.named("chat scripted"), spans.named("invoke_agent")
    assert of(chat)["error.type"] == "cancelled"
    assert of(holding)["holdfast.turn.outcome"] == "stopped"


async def test_each_attempt_at_a_model_call_is_a_span_with_its_error(spans: Spans, database: Path) -> None:
    model = replies(Reply(text="Here.", fail=Failure(kind="unavailable", times=1)))
    environ = {"HOLDFAST_BACKOFF_SECONDS": "0"}
    async with Runtime(database=database, model=model, environ=environ) as runtime:
        turn = await (await runtime.session()).run("go")
    assert turn.text == "Here."
    first, second = spans.named("chat scripted")
    assert (of(first)["error.type"], of(first)["holdfast.attempt"]) == ("model_unavailable", 1)
    assert first.status.status_code is StatusCode.ERROR
    assert "error.type" not in of(second)
    assert of(second)["holdfast.attempt"] == 2
    (holding,) = spans.named("invoke_agent")
    assert holding.status.status_code is StatusCode.UNSET


async def test_failed_turn_records_its_error(spans: Spans, database: Path) -> None:
    async with Runtime(database=database, model=replies(Reply(fail=Failure(kind="unauthorized")))) as runtime:
        turn = await (await runtime.session()).run("go")
    assert turn.reason == "error"
    assert turn.error is not None
    (holding,) = spans.named("invoke_agent")
    assert of(holding)["holdfast.turn.outcome"] == "error"
    assert of(holding)["error.type"] == turn.error.code
    assert holding.status.status_code is StatusCode.ERROR


async def test_handed_over_turn_stays_one_trace(spans: Spans, database: Path) -> None:
    speaking, never = asyncio.Event(), asyncio.Event()

    async def stands_still(piece: int) -> None:
        if piece == 2:
            speaking.set()
            await never.wait()

    async with Runtime(database=database, model=says("One two three", gate=stands_still)) as runtime:
        session = await runtime.session("count")
        await session.send("Count", message_id="m-1")
        await speaking.wait()
    async with Runtime(database=database, model=says("One two three")) as another:
        turn = await another.open("count").result_of("m-1")
    before, after = spans.named("invoke_agent")
    assert [of(span)["holdfast.turn.outcome"] for span in (before, after)] == ["handed_over", "completed"]
    assert {trace_of(span) for span in spans.all()} == {turn.turn_id.replace("-", "")}


class Broken(SpanProcessor):
    """A span processor that raises when a model call starts and when any span ends."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.name.startswith("chat"):
            raise RuntimeError("broken at a start")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken at an end")


async def test_broken_tracer_provider_fails_no_turn(spans: Spans, database: Path) -> None:
    @tool(permission="allow")
    def look() -> str:
        return "a heron"

    spans.provider.add_span_processor(Broken())
    async with Runtime(database=database, model=says(calls("look"), "Seen."), tools=[look]) as runtime:
        turn = await (await runtime.session()).run("go")
    assert (turn.reason, turn.text) == ("completed", "Seen.")


def test_no_tracer_without_a_provider() -> None:
    assert tracer() is None


def test_help_does_not_import_opentelemetry() -> None:
    script = "import sys; from holdfast.cli.main import main; sys.argv = ['holdfast', '--help']\ntry: main()\n"
    script += "except SystemExit: pass\nprint([name for name in sys.modules if 'opentelemetry' in name])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "Usage" in said
    assert said.splitlines()[-1] == "[]"


def test_trace_id_depends_on_the_turn_id_alone() -> None:
    known = TurnId("3f2504e0-4f89-41d3-9a0c-0305e82c3301")
    assert f"{trace_id_of(known):032x}" == "3f2504e04f8941d39a0c0305e82c3301"
    for odd in ("turn-1", "", "ünïcode", "0" * 32, "g" * 32):
        assert trace_id_of(TurnId(odd)) == trace_id_of(TurnId(odd)) > 0
        assert turn_context(TurnId(odd)).is_valid


@pytest.mark.parametrize(
    ("environ", "decision"),
    [
        ({}, Decision.RECORD_AND_SAMPLE),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, Decision.DROP),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, Decision.DROP),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, Decision.DROP),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1"}, Decision.RECORD_AND_SAMPLE),
        ({"OTEL_TRACES_SAMPLER": "nonsense", "OTEL_TRACES_SAMPLER_ARG": "x"}, Decision.RECORD_AND_SAMPLE),
    ],
)
def test_sampling_ratio_applies_to_turns_despite_their_parent_span(environ: dict[str, str], decision: Decision) -> None:
    turn = turn_context(TurnId("3f2504e0-4f89-41d3-9a0c-0305e82c3301"))
    parent = trace.set_span_in_context(trace.NonRecordingSpan(turn))
    assert sampler(environ).should_sample(parent, turn.trace_id, "invoke_agent").decision is decision
