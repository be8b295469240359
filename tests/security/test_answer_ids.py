"""An id that was used for one answer is not good for another: nothing is granted under cover of what was said first."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.server.errors import Conflict
from tests.http.test_requests import LOOKUP, answered, asked, asks_again
from tests.http.world import Client, Model, Place, code_of

DENY = {"decision": "deny"}
ONCE = {"decision": "approve"}
SESSION = {"decision": "approve_for_session"}
ALWAYS = {"decision": "approve_always"}
EVERYWHERE = {"decision": "approve_always", "everywhere": True}


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The options of a server for one of the two stores."""
    return ("--database", request.getfixturevalue("postgres_url")) if request.param == "postgresql" else ()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (DENY, ALWAYS),
        (DENY, EVERYWHERE),
        (DENY, {**ALWAYS, "rules": ["write(*)"]}),
        (DENY, SESSION),
        (DENY, ONCE),
        (ONCE, ALWAYS),
        (ONCE, SESSION),
        (SESSION, ALWAYS),
        (SESSION, EVERYWHERE),
        (SESSION, {**SESSION, "rules": ["shell"]}),
        (ALWAYS, EVERYWHERE),
        (ALWAYS, {**ALWAYS, "rules": ["write(*)"]}),
        (ALWAYS, DENY),
    ],
)
async def test_another_decision_under_a_used_id_is_a_conflict_and_grants_nothing(
    client: Client, tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    session, request = await asked(client, "write a note", working_directory=str(here))
    assert (await answered(client, session, request, answer_id="a1", **first)).status_code == 200
    other = await answered(client, session, request, answer_id="a1", **second)
    assert (other.status_code, code_of(other)) == (409, "id_reused")
    again = await answered(client, session, request, answer_id="a1", **first)
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    assert await asks_again(client, working_directory=str(here)) is (first != ALWAYS)
    assert await asks_again(client, working_directory=str(elsewhere))


@pytest.mark.parametrize("always", [ALWAYS, EVERYWHERE, {**ALWAYS, "rules": ["write"]}])
async def test_an_always_that_is_sent_again_grants_nothing_that_was_revoked_meanwhile(
    tmp_path: Path, own_model: Model, database: tuple[str, ...], always: dict[str, Any]
) -> None:
    async with Place(tmp_path, own_model).serve(*database) as server, server.client() as client:
        session, asked_for = await asked(client, "write a note")
        assert (await answered(client, session, asked_for, answer_id="a1", **always)).status_code == 200
        assert not await asks_again(client)
        (held,) = (await client.get("/v1/permissions")).json()["permissions"]
        assert (await client.delete(f"/v1/permissions/{held['id']}")).is_success
        again = await answered(client, session, asked_for, answer_id="a1", **always)
        assert (again.status_code, again.json()["duplicate"]) == (200, True)
        assert (await client.get("/v1/permissions")).json()["permissions"] == []
        assert await asks_again(client)


@pytest.mark.parametrize(
    ("text", "options", "first", "second"),
    [
        ("ask me something", {}, {"answer": "red"}, {"answer": "blue"}),
        ("look up ada", {"client_tools": [LOOKUP]}, {"content": "x"}, {"content": "x", "success": False}),
    ],
)
async def test_another_answer_or_result_under_a_used_id_is_a_conflict(
    client: Client, text: str, options: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> None:
    session, request = await asked(client, text, **options)
    assert (await answered(client, session, request, answer_id="a1", **first)).status_code == 200
    other = await answered(client, session, request, answer_id="a1", **second)
    assert (other.status_code, code_of(other)) == (409, "id_reused")


async def test_another_answer_under_a_used_id_is_refused_on_postgresql(
    tmp_path: Path, postgres_url: str, own_model: Model
) -> None:
    async with Place(tmp_path, own_model).serve("--database", postgres_url) as server, server.client() as client:
        session, request = await asked(client, "write a note")
        assert (await answered(client, session, request, answer_id="a1", **DENY)).status_code == 200
        other = await answered(client, session, request, answer_id="a1", **ALWAYS)
        assert (other.status_code, code_of(other)) == (409, "id_reused")
        assert await asks_again(client)


async def test_another_answer_under_a_used_id_is_refused_in_python(tmp_path: Path) -> None:
    call = ScriptedCall("create", {"path": "note.txt", "file_text": "hi"})
    script = Script((Rule(replies=(Reply(tool_calls=(call,)), Reply(text="Over."))),))
    async with Runtime(database=tmp_path / "holdfast.db", model=ScriptedModel(script)) as runtime:
        session = await runtime.session(working_directory=str(tmp_path))
        (request,) = (await session.run("Write it")).requests
        await session.deny(request.id, answer_id="a1")
        with pytest.raises(Conflict) as refused:
            await session.approve(request.id, for_session=True, answer_id="a1")
        assert refused.value.code == "id_reused"
    assert not (tmp_path / "note.txt").exists()
