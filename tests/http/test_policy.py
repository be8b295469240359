"""Fault 63: what a session asks for can't exceed what its owner's role may choose."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.server.http.errors import ApiError
from holdfast.server.http.policy import Policy
from tests.http.test_identity import People, made_key
from tests.http.world import Place, code_of


@pytest.fixture(scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policy")


@pytest.fixture(scope="module")
async def people(folder: Path) -> AsyncIterator[People]:
    place = Place(folder)
    (folder / "shared" / "ada").mkdir(parents=True)
    (folder / "private").mkdir()
    (folder / "shared" / "way-out").symlink_to(folder / "private")
    keys = {"ada": await made_key(place, "ada", "ada"), "root": await made_key(place, "root", "root", "admin")}
    shared = str(folder / "shared")
    async with place.serve(
        *("--auth", "keys", "--model", "demo"),
        HOLDFAST_USER_DIRECTORIES=shared,
        OPENAI_API_KEY="a-key",
        HOLDFAST_COMMANDS_WITHOUT_SANDBOX="allow",
    ) as server:
        yield People(server, keys)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"model": "openai/dear"}, "model_not_allowed"),
        ({"provider": {"base_url": "http://127.0.0.1:1/v1"}}, "provider_not_allowed"),
        ({"tools": ["exec"]}, "tool_not_allowed"),
        ({"tools": ["view", "bash"]}, "tool_not_allowed"),
        ({"allow": ["*"]}, "rule_not_allowed"),
        ({"allow": ["*(*)"]}, "rule_not_allowed"),
        ({"allow": ["shell"]}, "rule_not_allowed"),
        ({"allow": ["shell(git *)"]}, "rule_not_allowed"),
        ({"allow": ["write(*)"]}, "rule_not_allowed"),
        ({"allow": ["write(/etc/*)"]}, "rule_not_allowed"),
        ({"allow": ["read", "read(../*)"]}, "rule_not_allowed"),
        ({"working_directory": "/"}, "directory_not_allowed"),
        ({"working_directory": "{folder}/private"}, "directory_not_allowed"),
        ({"working_directory": "{folder}/shared/../private"}, "directory_not_allowed"),
        ({"working_directory": "{folder}/shared/way-out"}, "directory_not_allowed"),
        ({"working_directory": "{folder}/does-not-exist"}, "directory_not_allowed"),
    ],
)
async def test_fault_63_a_user_can_t_ask_for_more_than_users_may_and_an_admin_can(
    people: People, folder: Path, body: dict[str, Any], code: str
) -> None:
    if "working_directory" in body:
        body = {"working_directory": body["working_directory"].format(folder=folder)}
    async with people.client("ada") as ada, people.client("root") as root:
        before = (await ada.get("/v1/overview")).json()
        refused = await ada.post("/v1/sessions", json=body)
        assert (refused.status_code, code_of(refused)) == (403, code)
        assert (await ada.get("/v1/overview")).json() == before
        allowed = await root.post("/v1/sessions", json=body)
        assert allowed.status_code == (422 if "does-not-exist" in str(body) else 201), allowed.text


async def test_a_user_gets_what_users_may_have_and_can_ask_for_less(people: People, folder: Path) -> None:
    async with people.client("ada") as ada:
        settings = (await ada.get(f"/v1/sessions/{await ada.make()}")).json()["settings"]
        assert settings["working_directory"] is None
        assert "view" in settings["tools"]
        assert not {"exec", "bash", "kill_task"} & set(settings["tools"])
        wanted = {"tools": ["view"], "allow": ["write", "write(docs/*)"], "model": "demo"}
        made = await ada.make(working_directory=str(folder / "shared" / "ada"), **wanted)
        settings = (await ada.get(f"/v1/sessions/{made}")).json()["settings"]
        assert settings["working_directory"] == str(folder / "shared" / "ada")
        assert (settings["tools"], settings["allow"]) == (["view"], ["write", "write(docs/*)"])


async def test_fault_63_a_user_can_t_go_beyond_that_later_either(people: People, folder: Path) -> None:
    async with people.client("ada") as ada:
        session = await ada.make(working_directory=str(folder / "shared" / "ada"))
        changed = await ada.patch(f"/v1/sessions/{session}", json={"model": "openai/dear"})
        assert (changed.status_code, code_of(changed)) == (403, "model_not_allowed")
        await ada.say(session, "write a note")
        (request,) = (await ada.get(f"/v1/sessions/{session}/requests")).json()["requests"]
        path = f"/v1/sessions/{session}/requests/{request['id']}"
        for decision in ("approve_for_session", "approve_always"):
            granted = await ada.post(path, json={"decision": decision, "rules": ["*"]})
            assert (granted.status_code, code_of(granted)) == (403, "rule_not_allowed")
        assert len((await ada.get(f"/v1/sessions/{session}/requests")).json()["requests"]) == 1


async def test_fault_63_a_user_s_session_has_nothing_of_what_an_admin_of_the_same_owner_granted_for_always(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    keys = {"user": await made_key(place, "user", "ada"), "admin": await made_key(place, "admin", "ada", "admin")}
    shared = {"working_directory": str(place.work), "tools": ["create"]}
    async with place.serve(
        "--auth", "keys", HOLDFAST_USER_DIRECTORIES=f"shared:{place.work}", HOLDFAST_USER_RULES="read"
    ) as server:
        people = People(server, keys)
        async with people.client("user") as user, people.client("admin") as admin:
            first = await admin.make(**shared)
            await admin.say(first, "write a note")
            (request,) = (await admin.get(f"/v1/sessions/{first}/requests")).json()["requests"]
            path = f"/v1/sessions/{first}/requests/{request['id']}"
            refused = await user.post(path, json={"decision": "approve_always"})
            assert (refused.status_code, code_of(refused)) == (403, "rule_not_allowed")
            assert (await admin.post(path, json={"decision": "approve_always"})).status_code == 200
            for client, asks in ((admin, 0), (user, 1)):
                session = await client.make(**shared)
                await client.say(session, "write a note")
                assert len((await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]) == asks


async def test_a_session_without_a_directory_has_no_place_to_grant_something_for(people: People) -> None:
    async with people.client("ada") as ada:
        session = await ada.make(client_tools=[{"name": "lookup", "parameters": {}, "asks_permission": True}])
        answer = {"decision": "approve_always"}
        refused = await ada.post(f"/v1/sessions/{session}/requests/nobody", json=answer)
        assert (refused.status_code, code_of(refused)) == (422, "no_directory")


async def test_fault_63_figures_about_all_are_for_admins(people: People) -> None:
    async with people.client("ada") as ada, people.client("root") as root:
        refused = await ada.get("/metrics")
        assert (refused.status_code, code_of(refused)) == (403, "admins_only")
        assert (await root.get("/metrics")).status_code == 200


async def test_fault_63_a_user_sees_only_models_that_users_may_choose(folder: Path, tmp_path: Path) -> None:
    place = Place(tmp_path)
    keys = {"ada": await made_key(place, "ada", "ada"), "root": await made_key(place, "root", "root", "admin")}
    async with place.serve("--auth", "keys", "--model", "openai/x", "--model-base-url", "http://127.0.0.1:1") as server:
        people = People(server, keys)
        async with people.client("ada") as ada, people.client("root") as root:
            assert [found["name"] for found in (await ada.get("/v1/models")).json()["models"]] == ["openai/x"]
            assert len((await root.get("/v1/models")).json()["models"]) == 2


@pytest.mark.parametrize("rule", ["write", "write(docs/*)", "write(a)", "read(.git/*)", "custom-tool(lookup)"])
def test_a_rule_without_a_pattern_covers_those_that_stay_inside(rule: str) -> None:
    Policy(rules=("read", "write", "custom-tool")).check_rules([rule])


@pytest.mark.parametrize(
    "rule", ["write([!a]*)", "write(?etc/*)", "write(~/x)", "write()", "writer", "edit", "*(a)", "a b"]
)
def test_a_rule_that_could_reach_outside_or_is_none_is_not_covered(rule: str) -> None:
    with pytest.raises(ApiError):
        Policy(rules=("read", "write", "custom-tool")).check_rules([rule])
