"""A key gets no more out of a session than its role may have, whoever made the session, and grants no more either."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.test_identity import People, made_key
from tests.http.world import Client, Model, Place, code_of, patience


@pytest.fixture(scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("roles").resolve()
    (found / "people" / "ada").mkdir(parents=True)
    (found / "private").mkdir()
    return found


@pytest.fixture(scope="module")
async def people(folder: Path, model: Model) -> AsyncIterator[People]:
    """Two keys of one owner, without a sandbox: commands are for admins."""
    environ = {
        "HOLDFAST_USER_DIRECTORIES": f"{folder}/people/{{owner}}",
        "HOLDFAST_USER_RULES": "read",
        "HOLDFAST_COMMANDS_WITHOUT_SANDBOX": "allow",
    }
    place = Place(folder, model, **environ)
    keys = {"user": await made_key(place, "user", "ada"), "admin": await made_key(place, "admin", "ada", "admin")}
    async with place.serve("--auth", "keys") as server:
        yield People(server, keys)


@pytest.fixture
async def user(people: People) -> AsyncIterator[Client]:
    async with people.client("user") as client:
        yield client


@pytest.fixture
async def admin(people: People) -> AsyncIterator[Client]:
    async with people.client("admin") as client:
        yield client


BEYOND: dict[str, dict[str, Any]] = {
    "tools": {},
    "folder": {"tools": ["view", "create"], "working_directory": "{folder}/private"},
    "provider": {
        "tools": ["view"],
        "model": "any",
        "provider": {"base_url": "http://127.0.0.1:1/v1", "api_key": "k"},
    },
}
"""Options of a session that only admins may use."""


def given(folder: Path, what: str) -> dict[str, Any]:
    options = dict(BEYOND[what])
    if "working_directory" in options:
        options["working_directory"] = options["working_directory"].format(folder=folder)
    return options


@pytest.mark.parametrize("what", BEYOND)
async def test_a_user_only_reads_a_session_of_the_same_owner_that_has_more_than_users_may_have(
    user: Client, admin: Client, folder: Path, what: str
) -> None:
    session = await admin.make(**given(folder, what))
    one = f"/v1/sessions/{session}"
    before = await admin.events(session)
    for tried in (
        await user.post(f"{one}/messages", json={"text": "write a note"}),
        await user.post(f"{one}/stream", json={"text": "write a note"}),
        await user.post("/v1/chat", json={"id": session, "text": "write a note"}),
        await user.post(f"{one}/requests/any", json={"decision": "approve"}),
        await user.post(f"{one}/requests/any", json={"answer": "red"}),
        await user.patch(f"{one}/queue/any", json={"text": "write a note"}),
        await user.patch(one, json={"model": "openai/scripted"}),
        await user.patch(one, json={"mode": "autopilot"}),
        await user.patch(one, json={"tier": "standard"}),
        await user.patch(one, json={"thinking": 2_048}),
        await user.patch(one, json={"title": "Taken over"}),
        await user.patch(one, json={"metadata": {"a": "b"}}),
        await user.patch(one, json={"pinned": True, "title": "Taken over"}),
        await user.patch(one, json={"working_directory": f"{folder}/people/ada"}),
        await user.patch(f"{one}/queue", json={"message_ids": []}),
        await user.delete(f"{one}/queue/any"),
        await user.delete(f"{one}/tasks/any"),
        await user.post(f"{one}/tasks/any/background"),
        await user.post(f"{one}/rewind", json={"to": 1}),
        await user.post(f"{one}/compact", json={}),
        await user.delete(f"{one}/compact"),
        await user.put(f"{one}/messages/any/pin"),
        await user.delete(f"{one}/messages/any/pin"),
        await user.delete(one),
    ):
        assert (tried.status_code, code_of(tried)) == (403, "session_beyond_role"), tried.request.url
    assert await admin.events(session) == before
    shown = (await user.get(one)).json()["session"]
    assert (shown["pinned"], shown["metadata"]) == (False, {})
    assert (await user.patch(one, json={"pinned": True})).status_code == 200
    assert (await user.post(f"{one}/seen", json={})).status_code == 200


async def test_a_user_puts_no_text_into_a_message_with_a_model_that_only_admins_may_choose(
    user: Client, admin: Client, folder: Path
) -> None:
    session = await admin.make(working_directory=str(folder / "people" / "ada"), tools=["view", "create"])
    one = f"/v1/sessions/{session}"
    await admin.say(session, "write a note")
    later = {"text": "later", "message_id": "later", "delivery": "enqueue"}
    assert (await admin.post(f"{one}/messages", json={**later, "model": "openai/expensive"})).status_code == 200
    await admin.post(f"{one}/messages", json={**later, "message_id": "plain"})
    refused = await user.patch(f"{one}/queue/later", json={"text": "mine"})
    assert refused.status_code == 403
    assert (await user.patch(f"{one}/queue/plain", json={"text": "mine"})).status_code == 200
    queue = (await admin.get(f"{one}/queue")).json()["messages"]
    assert [message["text"] for message in queue] == ["later", "mine"]


async def test_a_user_stops_the_turn_of_such_a_session_and_its_queue_stays(
    user: Client, admin: Client, folder: Path
) -> None:
    session = await admin.make(**given(folder, "folder"))
    one = f"/v1/sessions/{session}"
    await admin.say(session, "write a note")
    await admin.post(f"{one}/messages", json={"text": "later", "message_id": "later", "delivery": "enqueue"})
    stopped = await user.post(f"{one}/cancel", json={})
    assert stopped.status_code == 200
    assert stopped.json()["outcome"] in ("stopping", "stopped")
    assert stopped.json()["returned"] == []
    receipt = (await admin.get(f"{one}/messages/later")).json()
    assert receipt["state"] != "removed"


async def test_a_change_that_starts_no_work_leaves_the_settings_of_an_admin_s_session(
    user: Client, admin: Client, folder: Path
) -> None:
    options = {"working_directory": str(folder / "people" / "ada"), "tools": ["view", "create"], "allow": ["*"]}
    session = await admin.make(**options)
    assert (await user.patch(f"/v1/sessions/{session}", json={"title": "Ours"})).status_code == 200
    assert (await admin.get(f"/v1/sessions/{session}")).json()["settings"]["allow"] == ["*"]
    assert (await user.delete(f"/v1/sessions/{session}")).status_code == 204


async def test_a_copy_that_a_user_makes_has_what_users_may_have(user: Client, admin: Client, folder: Path) -> None:
    for what in BEYOND:
        session = await admin.make(**given(folder, what))
        copy = await user.post(f"/v1/sessions/{session}/fork", json={})
        assert copy.status_code == 201
        settings = (await user.get(f"/v1/sessions/{copy.json()['id']}")).json()["settings"]
        assert not {"exec", "bash", "kill_task"} & set(settings["tools"])
        assert settings["working_directory"] is None
        sent = await user.say(copy.json()["id"], "hello")
        assert sent.status_code == 200


async def test_a_session_does_not_ask_a_model_for_a_user_that_users_may_not_choose(user: Client, admin: Client) -> None:
    choice = {"tools": ["view"], "model": "openai/for-admins"}
    assert code_of(await user.post("/v1/sessions", json=choice)) == "model_not_allowed"
    session = await admin.make(**choice)
    copy = (await user.post(f"/v1/sessions/{session}/fork", json={})).json()["id"]
    assert (await user.post(f"/v1/sessions/{session}/messages", json={"text": "hello"})).status_code == 200
    for used in (session, copy):
        settings = (await user.get(f"/v1/sessions/{used}")).json()["settings"]
        assert settings["model"] == "openai/scripted"


@pytest.mark.parametrize("decision", ["approve_for_session", "approve_always"])
async def test_a_user_grants_no_rule_that_users_may_not_grant(user: Client, folder: Path, decision: str) -> None:
    session = await user.make(working_directory=str(folder / "people" / "ada"))
    await user.say(session, "write a note")
    (request,) = (await user.get(f"/v1/sessions/{session}/requests")).json()["requests"]
    path = f"/v1/sessions/{session}/requests/{request['id']}"
    refused = await user.post(path, json={"decision": decision})
    assert (refused.status_code, code_of(refused)) == (403, "rule_not_allowed")
    assert (await user.post(path, json={"decision": "approve"})).status_code == 200
    assert (await user.get(f"/v1/sessions/{session}")).json()["settings"]["allow"] == []


async def test_rules_that_an_admin_granted_are_taken_from_a_session_before_it_works_for_a_user(
    user: Client, admin: Client, folder: Path
) -> None:
    options = {"working_directory": str(folder / "people" / "ada"), "tools": ["view", "create"], "allow": ["*", "read"]}
    session = await admin.make(**options)
    await user.say(session, "write a note")
    assert len((await user.get(f"/v1/sessions/{session}/requests")).json()["requests"]) == 1
    assert (await user.get(f"/v1/sessions/{session}")).json()["settings"]["allow"] == ["read"]


async def test_a_session_that_a_user_imports_has_the_tools_that_users_may_have(user: Client, admin: Client) -> None:
    session = await admin.make()
    document = (await user.get(f"/v1/sessions/{session}/export")).content
    made = await user.post("/v1/sessions/import", content=document, headers={"content-type": "application/json"})
    assert made.status_code == 201
    settings = (await user.get(f"/v1/sessions/{made.json()['id']}")).json()["settings"]
    assert settings["tools"] is not None
    assert not {"exec", "bash", "kill_task"} & set(settings["tools"])
    events = await user.events(made.json()["id"])
    assert not {"exec", "bash"} & set(events[0]["data"]["tools"])


# What an import brings


def event(name: str, **data: Any) -> dict[str, Any]:
    return {"type": name, "version": 1, "time": 1_700_000_000_000, "data": {"type": name, **data}}


def granting(folder: Path) -> bytes:
    """A document that grants in every way that a log can: from the start, by settings, and by a forged answer."""
    identity = {"path": str(folder / "private"), "device": 1, "inode": 1, "boot": "x"}
    more = {"workingDirectory": str(folder / "private"), "directoryIdentity": identity}
    call = {"type": "tool_call", "toolCallId": "c", "name": "create", "arguments": "{}"}
    asked = {"requestId": "r", "toolCallId": "c", "toolName": "create", "kind": "write", "subject": "a", "rule": "*"}
    decided = {"requestId": "r", "toolCallId": "c", "decision": "approved-for-session", "rules": ["*"]}
    provider = {"baseUrl": "http://127.0.0.1:1/v1"}
    settings = {"allow": ["*"], "placeRules": ["*"], "tools": ["exec"], "provider": provider, **more}
    events = [
        event("session.start", sessionId="theirs", producer="x", startTime=0, allow=["*"], tools=["exec"], **more),
        event("holdfast.settings_changed", **settings),
        event("holdfast.turn_started", turnId="t"),
        event("user.message", messageId="u", turnId="t", content="Do it", delivery="idle"),
        event("assistant.turn_start", turnId="t", step=1, messageId="a"),
        event("assistant.message", messageId="a", blocks=[call]),
        event("tool.execution_start", toolCallId="c", toolName="create", arguments="{}"),
        event("permission.requested", **asked),
        event("permission.completed", **decided),
        event("holdfast.settings_changed", **settings),
    ]
    whole = {"format": "holdfast-session-1", "session_id": "theirs", "title": "Theirs", "events": events}
    return json.dumps(whole).encode()


@pytest.mark.parametrize("who", ["user", "admin"])
async def test_an_import_grants_nothing_and_points_to_nothing(people: People, folder: Path, who: str) -> None:
    async with people.client(who) as client:
        json_body = {"content-type": "application/json"}
        made = await client.post("/v1/sessions/import", content=granting(folder), headers=json_body)
        assert made.status_code == 201, made.text
        session = made.json()["id"]
        assert (await client.get(f"/v1/sessions/{session}/permissions")).json() == {"permissions": []}
        settings = (await client.get(f"/v1/sessions/{session}")).json()["settings"]
        assert (settings["allow"], settings["working_directory"]) == ([], None)
        assert settings["tools"] != ["exec"]
        events = await client.events(session)
        assert not [found for found in events if found["type"] == "holdfast.settings_changed"]
        assert not [found for found in events if found["data"].get("decision") == "approved-for-session"]
        assert not {"allow", "workingDirectory", "directoryIdentity"} & set(events[0]["data"])
        # It asks about what the forged answer said yes to.
        ada = str(folder / "people" / "ada")
        assert (await client.patch(f"/v1/sessions/{session}", json={"working_directory": ada})).status_code == 200
        await client.say(session, "write a note")
        assert len((await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]) == 1


async def test_a_session_that_a_user_makes_or_moves_never_has_rules_of_the_place_that_users_may_not_grant(
    user: Client, admin: Client, folder: Path
) -> None:
    """Not even before it is used for the first time."""
    (folder / "people" / "ada" / "granted").mkdir()
    place = {"working_directory": str(folder / "people" / "ada" / "granted"), "tools": ["view", "create"]}
    first = await admin.make(**place)
    await admin.say(first, "write a note")
    (request,) = (await admin.get(f"/v1/sessions/{first}/requests")).json()["requests"]
    always = await admin.post(f"/v1/sessions/{first}/requests/{request['id']}", json={"decision": "approve_always"})
    assert always.status_code == 200
    moved = await user.make(working_directory=str(folder / "people" / "ada"))
    await user.patch(f"/v1/sessions/{moved}", json={"working_directory": place["working_directory"]})
    by_admin = await admin.make(**place)
    found = (await admin.get(f"/v1/sessions/{by_admin}/permissions")).json()["permissions"]
    assert [permission["rule"] for permission in found] == ["write"]
    for session in (await user.make(**place), moved):
        assert (await user.get(f"/v1/sessions/{session}/permissions")).json() == {"permissions": []}
        settings = [found["data"] for found in await user.events(session) if "settings" in found["type"]]
        assert not [data for data in settings if data.get("placeRules") or data.get("allow")]


async def test_rules_of_the_place_are_taken_from_an_admin_s_session_before_it_works_for_a_user(
    user: Client, admin: Client, folder: Path
) -> None:
    (folder / "people" / "ada" / "trusted").mkdir()
    place = {"working_directory": str(folder / "people" / "ada" / "trusted"), "tools": ["view", "create"]}
    first = await admin.make(**place)
    await admin.say(first, "write a note")
    (request,) = (await admin.get(f"/v1/sessions/{first}/requests")).json()["requests"]
    always = {"decision": "approve_always"}
    assert (await admin.post(f"/v1/sessions/{first}/requests/{request['id']}", json=always)).status_code == 200
    session = await admin.make(**place)
    assert len((await admin.get(f"/v1/sessions/{session}/permissions")).json()["permissions"]) == 1
    copy = (await user.post(f"/v1/sessions/{session}/fork", json={})).json()["id"]
    assert (await user.get(f"/v1/sessions/{copy}/permissions")).json() == {"permissions": []}
    await user.say(session, "write a note")
    assert len((await user.get(f"/v1/sessions/{session}/requests")).json()["requests"]) == 1


async def test_a_copy_that_leaves_its_folder_leaves_the_rules_of_that_place(
    user: Client, admin: Client, folder: Path
) -> None:
    """Also those that users may grant themselves: they were granted for another place."""
    place = {"working_directory": str(folder / "private"), "tools": ["view", "create"]}
    first = await admin.make(**place)
    await admin.say(first, "write a note")
    (request,) = (await admin.get(f"/v1/sessions/{first}/requests")).json()["requests"]
    always = {"decision": "approve_always", "rules": ["read"]}
    assert (await admin.post(f"/v1/sessions/{first}/requests/{request['id']}", json=always)).status_code == 200
    session = await admin.make(**place)
    copy = (await user.post(f"/v1/sessions/{session}/fork", json={})).json()["id"]
    settings = [found["data"] for found in await user.events(copy) if found["type"] == "holdfast.settings_changed"]
    assert settings[-1]["workingDirectory"] is None
    assert settings[-1]["placeRules"] == []


# A session gets more while a message of a user waits


async def waiting_turn(user: Client, folder: Path) -> str:
    """A session of the user whose turn asks for a permission, with one more message in the queue."""
    session = await user.make(working_directory=str(folder / "people" / "ada"), tools=["view", "create"])
    await user.say(session, "write a note")
    later = {"text": "write a note", "message_id": "later", "delivery": "enqueue"}
    assert (await user.post(f"/v1/sessions/{session}/messages", json=later)).status_code == 200
    return session


async def answer_the_request(client: Client, session: str, **answer: Any) -> None:
    (request,) = (await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]
    answered = await client.post(f"/v1/sessions/{session}/requests/{request['id']}", json=answer)
    assert answered.status_code == 200, answered.text


async def until(client: Client, session: str, kind: str, count: int) -> list[dict[str, Any]]:
    """The log, once it has that many events of that kind."""
    async with patience(), client.follow(session) as frames:
        async for frame in frames:
            count -= frame.kind == "event" and frame.data["type"] == kind
            if count == 0:
                break
    return await client.events(session)


async def test_a_queued_message_of_a_user_is_not_run_in_a_folder_that_an_admin_chose_meanwhile(
    user: Client, admin: Client, folder: Path
) -> None:
    session = await waiting_turn(user, folder)
    (folder / "elsewhere").mkdir()
    moved = await admin.patch(f"/v1/sessions/{session}", json={"working_directory": str(folder / "elsewhere")})
    assert moved.status_code == 200
    await answer_the_request(admin, session, decision="deny")
    events = await until(admin, session, "holdfast.turn_ended", 2)
    last = [found["type"] for found in events[-4:]]
    assert last == ["holdfast.turn_started", "user.message", "session.error", "holdfast.turn_ended"]
    assert events[-2]["data"]["errorType"] == "session_beyond_role"
    assert not list((folder / "elsewhere").iterdir())


async def test_a_queued_message_of_a_user_does_not_run_with_a_rule_that_an_admin_granted_meanwhile(
    user: Client, admin: Client, folder: Path
) -> None:
    session = await waiting_turn(user, folder)
    await answer_the_request(admin, session, decision="approve_for_session")
    await until(admin, session, "permission.requested", 2)
    assert (await admin.get(f"/v1/sessions/{session}")).json()["settings"]["allow"] == []
    receipt = (await user.get(f"/v1/sessions/{session}/messages/later")).json()
    assert (receipt["state"], receipt["delivery"]) == ("promoted", "queued")


async def test_a_queued_message_of_an_admin_is_held_to_the_role_of_a_user_who_edited_it(
    user: Client, admin: Client, folder: Path
) -> None:
    session = await admin.make(working_directory=str(folder / "people" / "ada"), tools=["view", "create"])
    await admin.say(session, "write a note")
    for message_id in ("edited", "kept"):
        later = {"text": "hello", "message_id": message_id, "delivery": "enqueue"}
        assert (await admin.post(f"/v1/sessions/{session}/messages", json=later)).status_code == 200
    edited = await user.patch(f"/v1/sessions/{session}/queue/edited", json={"text": "write a note"})
    assert edited.status_code == 200
    moved = await admin.patch(f"/v1/sessions/{session}", json={"working_directory": str(folder / "private")})
    assert moved.status_code == 200
    await answer_the_request(admin, session, decision="deny")
    events = await until(admin, session, "assistant.turn_start", 3)
    errors = [found["data"]["errorType"] for found in events if found["type"] == "session.error"]
    assert errors == ["session_beyond_role"]
    said = [found["data"]["content"] for found in events if found["type"] == "user.message"]
    assert said == ["write a note", "write a note", "hello"]


async def test_the_same_message_sent_again_with_another_role_has_the_same_receipt(
    user: Client, admin: Client, folder: Path
) -> None:
    session = await user.make(working_directory=str(folder / "people" / "ada"), tools=["view", "create"])
    message = {"text": "hello", "message_id": "once"}
    for client, duplicate in ((user, False), (admin, True), (user, True)):
        sent = await client.post(f"/v1/sessions/{session}/messages", json=message)
        assert (sent.status_code, sent.json()["duplicate"]) == (200, duplicate)
    other = await admin.post(f"/v1/sessions/{session}/messages", json={**message, "text": "other"})
    assert (other.status_code, code_of(other)) == (409, "id_reused")
