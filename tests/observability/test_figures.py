"""Metrics for Prometheus: exact after known traffic, well-formed, and bounded whatever names outsiders choose."""

import asyncio
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import httpx
import pytest

from holdfast import Runtime, tool
from holdfast.cli.telemetry import runtime_metrics
from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.observability.exposition import OTHER, Labels
from holdfast.observability.figures import MAX_MODELS, Figures
from holdfast.store.store import LedgerEntry
from tests.http.world import Place, patience
from tests.observability.exposition import Page

pytestmark = pytest.mark.anyio

USED = TokenUsage(input_tokens=10, output_tokens=5, cache_read_tokens=4, cost_microdollars=30)

HOSTILE = ('quo"te', "back\\slash", "new\nline", "\x1b[2J\x00", "é" * 500, '{a="b"} 1', "", "\ud800")


async def test_known_traffic_gives_exact_counts(tmp_path: Path) -> None:
    @tool(permission="allow")
    def works() -> str:
        return "done"

    @tool(permission="allow")
    def fails() -> str:
        raise ValueError("no")

    @tool(permission="ask")
    def asks() -> str:
        return "done"

    rules = (
        Rule(
            when="tools",
            replies=(
                Reply(
                    tool_calls=(ScriptedCall("works", {}), ScriptedCall("works", {}), ScriptedCall("fails", {})),
                    usage=USED,
                ),
                Reply(text="So.", usage=USED),
            ),
        ),
        Rule(when="made up", replies=(Reply(tool_calls=(ScriptedCall("made_up", {}),)), Reply(text="So."))),
        Rule(when="ask", replies=(Reply(tool_calls=(ScriptedCall("asks", {}),)), Reply(text="So.", usage=USED))),
        Rule(when="again", replies=(Reply(text="Here.", usage=USED, fail=Failure(kind="unavailable", times=1)),)),
        Rule(
            when="cut", replies=(Reply(text="One two three", usage=USED, fail=Failure(kind="cut", times=1, after=2)),)
        ),
        Rule(when="wrong", replies=(Reply(fail=Failure(kind="unauthorized")),)),
    )
    environ = {"HOLDFAST_BACKOFF_SECONDS": "0"}
    model = ScriptedModel(Script(rules=rules))
    tools = [works, fails, asks]
    async with Runtime(database=tmp_path / "f.db", model=model, tools=tools, environ=environ) as runtime:
        for text in ("tools", "made up", "again", "cut", "wrong"):
            await (await runtime.session()).run(text)
        session = await runtime.session()
        assert (await session.run("ask", message_id="m")).reason == "waiting"
        waiting = Page(await runtime_metrics(runtime).page())
        (request,) = await session.requests()
        await session.deny(request.id)
        await session.result_of("m")
        page = Page(await runtime_metrics(runtime).page())
    assert page.figure("holdfast_turns_started_total") == 6
    assert page.figure("holdfast_turns_ended_total", reason="completed") == 5
    assert page.figure("holdfast_turns_ended_total", reason="error") == 1
    assert page.figure("holdfast_turns_ended_total", reason="stopped") == 0
    assert page.figure("holdfast_tool_calls_total", tool="works", outcome="ok") == 2
    assert page.figure("holdfast_tool_calls_total", tool="fails", outcome="failed") == 1
    assert page.figure("holdfast_tool_calls_total", tool="asks", outcome="rejected") == 1
    assert page.figure("holdfast_tool_calls_total", tool=OTHER, outcome="unknown_tool") == 1
    assert page.figure("holdfast_model_call_failures_total", code="model_unavailable") == 1
    assert page.figure("holdfast_model_call_failures_total", code="model_unauthorized") == 1
    assert page.figure("holdfast_tokens_total", model="scripted", kind="input") == 50
    assert page.figure("holdfast_tokens_total", model="scripted", kind="output") == 25
    assert page.figure("holdfast_tokens_total", model="scripted", kind="cached") == 20
    assert page.figure("holdfast_cost_microdollars_total", model="scripted") == 150
    # Three failures (one answer was cut), both calls of the made-up tool, and the first call that asks.
    assert page.figure("holdfast_cost_unknown_total", model="scripted") == 6
    assert waiting.figure("holdfast_requests_opened_total") == page.figure("holdfast_requests_opened_total") == 1
    assert (waiting.figure("holdfast_requests_closed_total"), page.figure("holdfast_requests_closed_total")) == (0, 1)
    assert page.figure("holdfast_first_token_seconds_count") == 8
    assert page.figure("holdfast_commit_seconds_count") > 20
    assert page.figure("holdfast_lease_losses_total") == 0
    assert waiting.figure("holdfast_turns_running") == 0


async def test_tools_that_a_model_makes_up_share_one_label(tmp_path: Path) -> None:
    made_up = tuple(ScriptedCall(name or "x", {}) for name in HOSTILE[:-1])
    model = ScriptedModel(Script(rules=(Rule(replies=(Reply(tool_calls=made_up), Reply(text="So."))),)))
    async with Runtime(database=tmp_path / "f.db", model=model) as runtime:
        await (await runtime.session()).run("go")
        page = Page(await runtime_metrics(runtime).page())
    assert page.labels("holdfast_tool_calls_total", "tool") == {OTHER}
    assert page.figure("holdfast_tool_calls_total", tool=OTHER, outcome="unknown_tool") == len(made_up)


async def test_compactions_and_what_the_cache_read_and_took_in_are_counted(tmp_path: Path) -> None:
    used = TokenUsage(input_tokens=100, output_tokens=5, cache_read_tokens=75, cache_write_tokens=20)
    model = ScriptedModel(Script(rules=(Rule(replies=(Reply(text="Noted. " * 100, usage=used),)),)))
    async with Runtime(database=tmp_path / "f.db", model=model) as runtime:
        session = await runtime.session()
        for text in ("one", "two"):
            await session.run(text)
        assert (await session.compact(wait_seconds=30)).outcome == "compacted"
        page = Page(await runtime_metrics(runtime).page())
    for kind, tokens in (("input", 200), ("cached", 150), ("cache_write", 40)):
        assert page.figure("holdfast_tokens_total", model="scripted", kind=kind) == tokens
    assert page.figure("holdfast_compactions_total", outcome="summary") == 1
    assert page.figure("holdfast_compactions_total", outcome="failed") == 0


def test_any_number_of_odd_model_names_leaves_valid_metrics() -> None:
    figures = Figures(models=("demo",))
    for number in range(1_000):
        figures.booked(used_by(f"{number}{HOSTILE[number % len(HOSTILE)]}"))
    figures.booked(used_by("demo"))
    text = "\n".join(figures.lines()) + "\n"
    page = Page(text.encode().decode())
    assert len(page.labels("holdfast_tokens_total", "model")) == MAX_MODELS + 2
    assert page.figure("holdfast_tokens_total", model="demo", kind="input") == 1
    assert page.figure("holdfast_tokens_total", model=OTHER, kind="input") == 1_000 - MAX_MODELS
    assert len(text) < 50_000


def used_by(model: str) -> LedgerEntry:
    return LedgerEntry(
        message_id="m",  # type: ignore[arg-type]
        attempt=1,
        model=model,
        input_tokens=1,
        output_tokens=None,
        cache_read_tokens=None,
        cost_microdollars=None,
        time=0,
    )


def test_label_keeps_the_printable_part_of_a_name() -> None:
    labels = Labels(HOSTILE)
    assert [labels.of(name) for name in HOSTILE[:3]] == ['quo\\"te', "back\\\\slash", "new�line"]
    assert labels.of("never heard of") == OTHER


async def test_server_counts_requests_in_valid_metrics(tmp_path: Path) -> None:
    async with Place(tmp_path).serve() as server, server.client() as client:
        for _ in range(3):
            await client.get("/v1/models")
        await client.get("/v1/nothing/here")
        page = Page((await client.get("/metrics")).text)
    assert page.figure("holdfast_http_requests_total", status="2xx") == 3
    assert page.figure("holdfast_http_requests_total", status="4xx") == 1
    assert page.figure("holdfast_http_requests_open") == 1
    assert page.figure("holdfast_readers") == 0
    assert page.kinds["holdfast_queue_age_seconds"] == "gauge"


@pytest.mark.parametrize("command", ["serve", "worker"])
async def test_metrics_port_serves_only_metrics_and_health(tmp_path: Path, command: str) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", command, "--data-dir", str(tmp_path), "--metrics-port", "0"),
        *(("--port", "0") if command == "serve" else ()),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    try:
        assert child.stdout is not None
        async with patience():
            while not (found := re.search(rb"Metrics are on port (\d+)", await child.stdout.readline())):
                assert not child.stdout.at_eof()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{int(found[1])}", trust_env=False) as anonymous:
            page = await anonymous.get("/metrics")
            assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert Page(page.text).figure("holdfast_sessions_held") == 0
            assert (await anonymous.get("/healthz")).json()["status"] == "ok"
            assert (await anonymous.get("/readyz")).json()["status"] == "ready"
            assert (await anonymous.get("/v1/sessions")).status_code == 404
            assert (await anonymous.post("/metrics")).status_code == 405
            from_a_page = await anonymous.get("/metrics", headers={"origin": "https://evil.example"})
            assert from_a_page.status_code == 403
        child.send_signal(signal.SIGTERM)
        async with patience():
            assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
