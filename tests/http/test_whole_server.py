"""Routes about the whole server: the overview, the models, its health, its metrics, its page."""

import re

import httpx
import pytest

from tests.http.world import Client, Place, Server, code_of


async def test_the_overview_counts_and_puts_first_who_waits_for_somebody(own_place: Place) -> None:
    async with own_place.serve() as server, server.client() as client:
        idle = await client.make()
        older = await client.make()
        await client.say(older, "write a note")
        newer = await client.make()
        await client.say(newer, "ask me something")
        overview = (await client.get("/v1/overview")).json()
        assert overview["counts"] == {
            "needs_attention": 2,
            "running": 0,
            "queued": 0,
            "finished_lately": 1,
            "idle": 0,
        }
        assert [view["id"] for view in overview["items"]] == [older, newer, idle]


UNKNOWN = {"window": 128_000, "is_known": False, "max_output": None, "images": True, "tools": True, "thinking": True}


async def test_the_models_are_named_with_what_is_known_of_them_and_the_default_is_said(client: Client) -> None:
    assert (await client.get("/v1/models")).json() == {
        "models": [
            {"name": "openai/scripted", "is_default": True, **UNKNOWN},
            {"name": "demo", "is_default": False, **UNKNOWN},
        ]
    }


async def test_the_facts_about_a_model_are_those_of_the_catalogue_and_of_the_operator(own_place: Place) -> None:
    stated = own_place.work / "models.toml"
    stated.write_text('["openai/scripted"]\nwindow = 32768\nmax_output = 4096\nimages = false\nthinking = false\n')
    advanced = "openrouter/some/model"
    serving = own_place.serve(HOLDFAST_MODELS=str(stated), HOLDFAST_MODEL_ADVANCED=advanced)
    async with serving as server, server.client() as client:
        scripted, other, _ = (await client.get("/v1/models")).json()["models"]
    said = {"window": 32_768, "is_known": True, "max_output": 4_096, "images": False, "tools": True, "thinking": False}
    assert scripted == {"name": "openai/scripted", "is_default": True, **said}
    assert other == {"name": advanced, "is_default": False, **dict.fromkeys(UNKNOWN), "is_known": False}


async def test_health_and_readiness_need_no_key(server: Server) -> None:
    async with server.client("") as nobody:
        assert (await nobody.get("/healthz")).json()["status"] == "ok"
        assert (await nobody.get("/readyz")).json()["status"] == "ready"


async def test_the_figures_count_turns_tokens_and_first_tokens(own_place: Place) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        await client.say(session, "good morning")
        page = await client.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        assert figure(page, "holdfast_turns_started_total") == 1
        assert figure(page, 'holdfast_turns_ended_total{reason="completed"}') == 1
        assert figure(page, "holdfast_first_token_seconds_count") == 1
        assert figure(page, 'holdfast_tokens_total{model="openai/scripted",kind="input"}') == 7
        assert figure(page, 'holdfast_tokens_total{model="openai/scripted",kind="output"}') == 3
        assert figure(page, "holdfast_queue_age_seconds") == 0
        assert figure(page, "holdfast_lease_losses_total") == 0
        helps = re.findall(r"^# HELP (\S+)", page.text, re.MULTILINE)
        assert len(helps) == len(set(helps))


def figure(page: httpx.Response, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", page.text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


async def test_the_page_runs_only_what_comes_from_this_server(server: Server) -> None:
    async with server.client("") as nobody:
        page = await nobody.get("/")
    assert page.status_code == 200
    assert re.findall(r"<script[^>]*>", page.text) == re.findall(
        r'<script type="module" src="/assets/[^"/]+">', page.text
    )
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in page.headers["content-security-policy"]
    assert server.token not in page.text


async def test_every_answer_has_the_headers_that_keep_a_browser_safe(client: Client, server: Server) -> None:
    for response in (
        await client.get("/"),
        await client.get("/v1/sessions"),
        await client.get("/v1/nothing"),
        await client.get("/v1/sessions", headers={"origin": "http://elsewhere.example"}),
    ):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("path", ["/v1", "/v1/nothing", "/nothing", "/v1/sessions/", "/v1/sessions//", "/v1/%ff"])
async def test_an_address_that_there_is_not_is_not_found_in_the_one_shape(client: Client, path: str) -> None:
    response = await client.get(path)
    assert (response.status_code, code_of(response)) == (404, "not_found")


async def test_the_refusal_of_a_method_names_those_that_the_address_takes(client: Client) -> None:
    response = await client.put("/v1/sessions", json={})
    assert (response.status_code, code_of(response)) == (405, "method_not_allowed")
    assert {"GET", "POST"} <= set(response.headers["allow"].split(", "))


async def test_a_head_is_answered_like_a_get_without_a_body(client: Client) -> None:
    session = await client.make()
    for path in ("/healthz", f"/v1/sessions/{session}", f"/v1/sessions/{session}/events"):
        response = await client.head(path, headers={"accept": "text/event-stream"})
        assert (response.status_code, response.content) == (200, b"")
