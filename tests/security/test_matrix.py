"""Every route of the server, tried by everybody who must not get through, and by those who may, but not for this.

The routes come from the server's own table, so that a new one fails here until it says what it is. A foreign thing is
answered exactly like a missing one: the same status, the same headers, the same body.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx
import msgspec
import pytest

from holdfast.protocol.identity import Role
from holdfast.server.http.app import api_routes
from holdfast.server.http.keys import KeyRing
from holdfast.server.http.service import HttpService
from holdfast.store.clock import SystemClock
from holdfast.store.sqlite.store import SqliteStore
from tests.http.test_identity import People, secret_of
from tests.http.test_requests import answered, asked
from tests.http.world import Client, Model, Place, code_of, patience

S = "/v1/sessions/{session_id}"
W = "/v1/webhooks"


class Entry(NamedTuple):
    """A valid request for a route, so that only the caller can be wrong, and the role that the route is for."""

    body: Any = None
    query: str = ""
    is_public: bool = False
    admins_only: bool = False
    missing: int = 404
    """The status for a session that is not there."""
    for_readers: bool | None = None
    """Whether it is for a key of the same owner whose role may only read the session; of routes that change one."""


TEXT = {"text": "Hi"}
ENTRIES = {
    ("GET", "/"): Entry(is_public=True),
    ("GET", "/assets/{name}"): Entry(is_public=True),
    ("GET", "/healthz"): Entry(is_public=True),
    ("GET", "/readyz"): Entry(is_public=True),
    ("GET", "/v1/openapi.json"): Entry(is_public=True),
    ("GET", "/metrics"): Entry(admins_only=True),
    ("GET", "/v1/identity"): Entry(),
    ("GET", "/v1/audit"): Entry(admins_only=True),
    ("GET", "/v1/budget"): Entry(),
    ("POST", "/v1/budget/reset"): Entry(),
    ("GET", "/v1/usage"): Entry(admins_only=True),
    ("GET", "/v1/owners"): Entry(admins_only=True),
    ("GET", "/v1/owners/{owner}/budget"): Entry(admins_only=True),
    ("PUT", "/v1/owners/{owner}/budget"): Entry({}, admins_only=True),
    ("POST", "/v1/owners/{owner}/budget/reset"): Entry(admins_only=True),
    ("POST", "/v1/billing"): Entry({"owner": "bob", "version": 1}, is_public=True),
    ("GET", "/v1/models"): Entry(),
    ("GET", "/v1/overview"): Entry(),
    ("GET", "/v1/permissions"): Entry(),
    ("DELETE", "/v1/permissions/{permission_id}"): Entry(),
    ("GET", "/v1/tasks"): Entry(),
    ("GET", W): Entry(),
    ("POST", W): Entry({"url": "https://hooks.invalid/new"}),
    ("GET", f"{W}/{{webhook_id}}"): Entry(),
    ("PATCH", f"{W}/{{webhook_id}}"): Entry({"description": "Taken over"}),
    ("DELETE", f"{W}/{{webhook_id}}"): Entry(),
    ("POST", f"{W}/{{webhook_id}}/secret"): Entry(),
    ("POST", f"{W}/{{webhook_id}}/test"): Entry(),
    ("GET", f"{W}/{{webhook_id}}/deliveries"): Entry(),
    ("GET", f"{W}/{{webhook_id}}/deliveries/{{delivery_id}}"): Entry(),
    ("POST", f"{W}/{{webhook_id}}/deliveries/{{delivery_id}}/send"): Entry(),
    ("GET", "/v1/files"): Entry(),
    ("POST", "/v1/files"): Entry({"any": "content"}),
    ("GET", "/v1/files/{file_id}"): Entry(),
    ("GET", "/v1/files/{file_id}/content"): Entry(),
    ("PATCH", "/v1/files/{file_id}"): Entry({"kept": True}),
    ("DELETE", "/v1/files/{file_id}"): Entry(),
    ("GET", "/v1/sessions"): Entry(),
    ("POST", "/v1/sessions"): Entry({}),
    ("POST", "/v1/sessions/import"): Entry({"format": "none"}),
    ("POST", "/v1/chat"): Entry({"id": "{chat_id}", **TEXT}, for_readers=False),
    ("GET", "/v1/chat/{session_id}"): Entry(missing=200),
    ("GET", "/v1/chat/{session_id}/stream"): Entry(missing=204),
    ("GET", S): Entry(),
    ("PATCH", S): Entry({"title": "Taken over"}, for_readers=False),
    ("DELETE", S): Entry(for_readers=False),
    ("GET", f"{S}/activity"): Entry(),
    ("POST", f"{S}/cancel"): Entry({}, for_readers=True),
    ("POST", f"{S}/compact"): Entry({}, for_readers=False),
    ("POST", f"{S}/continue"): Entry({}, for_readers=False),
    ("DELETE", f"{S}/compact"): Entry(for_readers=False),
    ("GET", f"{S}/events"): Entry(),
    ("GET", f"{S}/export"): Entry(),
    ("GET", f"{S}/files"): Entry(),
    ("POST", f"{S}/fork"): Entry({}, for_readers=True),
    ("POST", f"{S}/messages"): Entry(TEXT, for_readers=False),
    ("GET", f"{S}/messages/{{message_id}}"): Entry(),
    ("PUT", f"{S}/messages/{{message_id}}/pin"): Entry(for_readers=False),
    ("DELETE", f"{S}/messages/{{message_id}}/pin"): Entry(for_readers=False),
    ("GET", f"{S}/permissions"): Entry(),
    ("DELETE", f"{S}/permissions/{{permission_id}}"): Entry(for_readers=True),
    ("GET", f"{S}/queue"): Entry(),
    ("PATCH", f"{S}/queue"): Entry({"message_ids": ["{message_id}"]}, for_readers=False),
    ("PATCH", f"{S}/queue/{{message_id}}"): Entry(TEXT, for_readers=False),
    ("DELETE", f"{S}/queue/{{message_id}}"): Entry(for_readers=False),
    ("GET", f"{S}/requests"): Entry(),
    ("POST", f"{S}/requests/{{request_id}}"): Entry({"decision": "approve"}, for_readers=False),
    ("POST", f"{S}/rewind"): Entry({"to": 1}, for_readers=False),
    ("POST", f"{S}/seen"): Entry({"position": 1}, for_readers=True),
    ("GET", f"{S}/stream"): Entry(),
    ("POST", f"{S}/stream"): Entry(TEXT, for_readers=False),
    ("GET", f"{S}/tasks"): Entry(),
    ("GET", f"{S}/tasks/{{task_id}}"): Entry(),
    ("DELETE", f"{S}/tasks/{{task_id}}"): Entry(for_readers=False),
    ("POST", f"{S}/tasks/{{task_id}}/background"): Entry(for_readers=False),
    ("GET", f"{S}/tasks/{{task_id}}/output"): Entry(),
}


class Nothing:
    """Stands for a service whose routes are only looked at."""

    def __getattr__(self, name: str) -> Any:
        return Nothing()

    def __call__(self, *given: object) -> Any:
        return Nothing()


def routes() -> list[tuple[str, str]]:
    """Every method at every address, as the server has them."""
    return [(each.method, each.path) for route in api_routes(cast(HttpService, Nothing())) for each in route.endpoints]


ROUTES = routes()
CLOSED = [route for route in ROUTES if route in ENTRIES and not ENTRIES[route].is_public]
NAMING = [route for route in CLOSED if "{session_id}" in route[1]]
NESTED = [route for route in CLOSED if re.search(r"{(request|message|task|permission|webhook|file)_id}", route[1])]
CHANGES = [route for route in ROUTES if route[0] != "GET" and ("{session_id}" in route[1] or route[1] == "/v1/chat")]
LISTS = [route for route in CLOSED if "{" not in route[1] and route[0] == "GET"]


def test_every_route_of_the_server_is_in_the_matrix() -> None:
    assert set(ENTRIES) == set(ROUTES), "a new route says here whom it is for"
    assert len(ROUTES) == len(set(ROUTES))


def test_every_route_that_changes_a_session_says_whether_readers_may() -> None:
    said = [route for route in ROUTES if ENTRIES[route].for_readers is not None]
    assert said == CHANGES


ELSEWHERE: dict[str, Any] = {
    "HOLDFAST_BILLING_SECRET": "a-secret-of-the-matrix",
    "HOLDFAST_CREDIT_URL": "http://127.0.0.1:1/",
    "HOLDFAST_CREDIT_SECRET": "a-secret-of-the-matrix",
}
"""Other systems, for the routes that exist only with them."""


class World(NamedTuple):
    """A server with all that one person may have in it, and everybody else."""

    people: People
    ids: dict[str, str]
    """Of what is Ada's."""

    def address(self, path: str, **instead: str) -> str:
        return path.format(**{"name": "page.js", "owner": "bob", **self.ids, **instead})

    def body(self, route: tuple[str, str], **instead: str) -> Any:
        text = msgspec.json.encode(ENTRIES[route].body).decode()
        for name, found in {"chat_id": "made-in-the-matrix", **self.ids, **instead}.items():
            text = text.replace(f"{{{name}}}", found)
        return msgspec.json.decode(text)

    async def ask(self, client: Client, route: tuple[str, str], **instead: str) -> httpx.Response:
        body = self.body(route, **instead)
        more = {} if body is None else {"json": body}
        return await client.request(route[0], self.address(route[1], **instead), **more)

    async def seen(self) -> Any:
        """All of Ada's, as Ada sees it."""
        async with self.people.client("ada") as ada:
            session = self.ids["session_id"]
            paths = ("/events?limit=1000", "/queue", "/requests")
            whole = [(await ada.get(f"/v1/sessions/{session}{path}")).json() for path in paths]
            tasks = (await ada.get(f"/v1/sessions/{session}/tasks")).json()["tasks"]
            whole.append([(task["id"], task["status"]) for task in tasks])
            whole.append((await ada.get("/v1/permissions")).json())
            whole.append((await ada.get(self.address("/v1/files/{file_id}"))).json())
            hooks = (await ada.get("/v1/webhooks")).json()["webhooks"]
            whole.append([(hook["id"], hook["url"], hook["description"], hook["active"]) for hook in hooks])
            whole.append((await ada.get(self.address(f"{W}/{{webhook_id}}/deliveries/{{delivery_id}}"))).json()["id"])
            return whole, sorted(found["id"] for found in (await ada.get("/v1/sessions")).json()["sessions"])


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, model: Model) -> AsyncIterator[World]:
    place = Place(tmp_path_factory.mktemp("matrix"), model)
    os.mkfifo(place.work / "pipe")
    keys = await keys_at(place)
    async with (
        place.serve("--auth", "keys", HOLDFAST_COMMANDS_WITHOUT_SANDBOX="allow", **ELSEWHERE) as server,
        server.client(keys["ada"]) as ada,
    ):
        async with patience():
            ids = await belongings(ada, place.work)
        yield World(People(server, keys), ids)
        await ada.delete(f"/v1/sessions/{ids['session_id']}/tasks/{ids['task_id']}")


PEOPLE: dict[str, tuple[str, Role]] = {
    "ada": ("ada", "admin"),
    "bob": ("bob", "user"),
    "root": ("root", "admin"),
    "gone": ("ada", "admin"),
    "reader": ("ada", "user"),
}


async def keys_at(place: Place) -> dict[str, str]:
    """A key for each of them; one of Ada's is revoked."""
    place.data.mkdir(mode=0o700)
    store = await SqliteStore.open(place.data / "holdfast.db", node="here")
    ring = KeyRing(store, SystemClock())
    made = {name: await ring.create(name=name, owner=owner, role=role) for name, (owner, role) in PEOPLE.items()}
    await ring.revoke(made["gone"].row.key_id)
    await store.close()
    return {name: found.key for name, found in made.items()}


async def belongings(ada: Client, work: Path) -> dict[str, str]:
    """A session with a task that runs, a request that is open and a message that waits; and something that is allowed
    for always elsewhere."""
    session = await ada.make(id="diary-of-ada", title="Private", working_directory=str(work), allow=["shell"])
    path = f"/v1/sessions/{session}"
    await ada.say(session, "start it")
    await ada.say(session, "write a note")
    sent = await ada.post(f"{path}/messages", json={"text": "later", "delivery": "enqueue"})
    (request,) = (await ada.get(f"{path}/requests")).json()["requests"]
    (task,) = (await ada.get(f"{path}/tasks")).json()["tasks"]
    (work / "elsewhere").mkdir()
    other, asked_there = await asked(ada, "write a note", working_directory=str(work / "elsewhere"))
    assert (await answered(ada, other, asked_there, decision="approve_always")).status_code == 200
    (permission,) = (await ada.get("/v1/permissions")).json()["permissions"]
    webhook = (await ada.post(W, json={"url": "https://hooks.invalid/of-ada", "events": ["task.ended"]})).json()
    test = (await ada.post(f"{W}/{webhook['webhook']['id']}/test")).json()
    file = (await ada.post("/v1/files?name=private.txt", content=b"Private")).json()
    return {
        "file_id": file["id"],
        "session_id": session,
        "request_id": request["id"],
        "task_id": task["id"],
        "message_id": sent.json()["message_id"],
        "permission_id": permission["id"],
        "webhook_id": webhook["webhook"]["id"],
        "delivery_id": test["id"],
    }


def bearers(people: People) -> dict[str, dict[str, str]]:
    """Credentials of strangers, which belong to no owner."""
    good = people.keys["ada"]
    return {
        "nothing": {},
        "a known id and another secret": {"authorization": f"Bearer {good[:-1]}{'A' if good[-1] != 'A' else 'B'}"},
        "an unknown id and a good secret": {"authorization": f"Bearer hf_000000000000_{secret_of(good)}"},
        "a revoked one": {"authorization": f"Bearer {people.keys['gone']}"},
        "another scheme": {"authorization": f"Basic {good}"},
        "a cookie": {"cookie": f"token={good}; authorization=Bearer {good}"},
    }


@pytest.mark.parametrize("route", CLOSED, ids=" ".join)
async def test_requests_without_a_valid_key_are_refused(world: World, route: tuple[str, str]) -> None:
    before, answers = await world.seen(), {}
    async with world.people.server.client("") as stranger:
        for shown, headers in bearers(world.people).items():
            stranger.headers = httpx.Headers(headers)
            for named in ({}, {"session_id": "diary-of-eve"}):
                answers[shown, *named] = plain(await world.ask(stranger, route, **named))
        stranger.headers = httpx.Headers()
        asked = await stranger.request(route[0], f"{world.address(route[1])}?token={world.people.keys['ada']}")
        answers["a query", ""] = plain(asked)
    (answer,) = set(answers.values())
    assert (answer.status, answer.header("www-authenticate")) == (401, "Bearer")
    assert await world.seen() == before


@pytest.mark.parametrize("route", [route for route in ROUTES if route in ENTRIES], ids=" ".join)
async def test_a_page_of_another_origin_and_a_name_made_to_point_here_get_nothing(
    world: World, route: tuple[str, str]
) -> None:
    before = await world.seen()
    async with world.people.client("ada") as ada:
        port = world.people.server.port
        for headers, code in (
            ({"origin": "https://evil.example"}, "origin_not_allowed"),
            ({"origin": "null"}, "origin_not_allowed"),
            ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, "origin_not_allowed"),
            ({"host": f"rebound.example:{port}", "origin": f"http://rebound.example:{port}"}, "host_not_allowed"),
        ):
            body = world.body(route)
            more = {} if body is None else {"json": body}
            refused = await ada.request(route[0], world.address(route[1]), headers=headers, **more)
            assert (refused.status_code, code_of(refused)) == (403, code)
            assert not [name for name in refused.headers if name.startswith("access-control-")]
    assert await world.seen() == before


class Plain(NamedTuple):
    """An answer without what differs between any two."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: str

    def header(self, name: str) -> str:
        return dict(self.headers)[name]


def plain(response: httpx.Response, *names: str) -> Plain:
    text = response.text
    for name in names:
        text = text.replace(name, "IT")
    headers = sorted(found for found in response.headers.items() if found[0] not in ("date", "x-request-id"))
    return Plain(response.status_code, tuple(headers), text)


def like(found: str) -> str:
    """An id that is nobody's, as long as that one."""
    return found[:-1] + ("0" if found[-1] != "0" else "1")


@pytest.mark.parametrize("who", ["bob", "root"])
@pytest.mark.parametrize("route", NAMING, ids=" ".join)
async def test_fault_56_a_foreign_session_is_answered_exactly_like_a_missing_one(
    world: World, route: tuple[str, str], who: str
) -> None:
    before = await world.seen()
    session = world.ids["session_id"]
    async with world.people.client(who) as other:
        foreign = plain(await world.ask(other, route), session)
        missing = plain(await world.ask(other, route, session_id=like(session)), like(session))
    assert foreign == missing
    assert foreign.status == ENTRIES[route].missing
    assert await world.seen() == before


@pytest.mark.parametrize("route", NESTED, ids=" ".join)
async def test_a_foreign_request_message_task_permission_webhook_or_file_is_missing_among_one_s_own(
    world: World, route: tuple[str, str]
) -> None:
    before = await world.seen()
    (name,) = re.findall(r"{((?:request|message|task|permission|webhook|file)_id)}", route[1])
    theirs = world.ids[name]
    async with world.people.client("bob") as bob:
        own = await bob.make()
        foreign = plain(await world.ask(bob, route, session_id=own), theirs)
        missing = plain(await world.ask(bob, route, session_id=own, **{name: like(theirs)}), like(theirs))
    assert foreign == missing
    assert foreign.status in (404, 409)
    assert await world.seen() == before


@pytest.mark.parametrize("who", ["bob", "root"])
@pytest.mark.parametrize("route", LISTS, ids=" ".join)
async def test_no_list_contains_data_of_another_owner(world: World, route: tuple[str, str], who: str) -> None:
    """The audit log tells admins which sessions were deleted, exported or given rights, and nothing else of them."""
    told = {"session_id"} if route[1] == "/v1/audit" else set()
    ids = [found for name, found in world.ids.items() if name not in told]
    async with world.people.client("ada") as ada, world.people.client(who) as other:
        cursor = (await ada.get("/v1/sessions", params={"limit": 1})).json().get("next")
        for query in ("", f"?cursor={cursor}" if cursor and route[1] == "/v1/sessions" else ""):
            text = (await other.get(route[1] + query)).text
            assert not [found for found in (*ids, "Private", "invalid/of-ada") if found in text]


@pytest.mark.parametrize("who", ["bob", "root"])
async def test_a_foreign_parent_is_a_missing_one(world: World, who: str) -> None:
    session = world.ids["session_id"]
    async with world.people.client(who) as other:
        answers = [
            plain(await other.post("/v1/sessions", json={"parent": named}), named) for named in (session, like(session))
        ]
    assert answers[0] == answers[1]
    assert answers[0].status == 404


@pytest.mark.parametrize("route", CLOSED, ids=" ".join)
async def test_only_the_routes_for_admins_are_refused_to_users(world: World, route: tuple[str, str]) -> None:
    async with world.people.client("bob") as bob, world.people.client("root") as root:
        for client, is_admin in ((bob, False), (root, True)):
            own = await client.make()
            named = {name: like(found) for name, found in world.ids.items()} | {"session_id": own}
            async with patience():
                answer = await world.ask(client, route, **named)
            is_refused = ENTRIES[route].admins_only and not is_admin
            assert (answer.status_code == 403) == is_refused, answer.text
            assert answer.status_code < 500
            if is_refused:
                assert code_of(answer) == "admins_only"


@pytest.mark.parametrize("route", [route for route in CHANGES if not ENTRIES[route].for_readers], ids=" ".join)
async def test_nothing_in_an_admin_s_session_is_changed_by_a_user_of_the_same_owner(
    world: World, route: tuple[str, str]
) -> None:
    """The session works in a folder, and has tools, that users may not choose."""
    before = await world.seen()
    async with world.people.client("reader") as reader:
        named = {"chat_id": world.ids["session_id"]}
        refused = await world.ask(reader, route, **named)
    assert (refused.status_code, code_of(refused)) == (403, "session_beyond_role")
    assert await world.seen() == before


@pytest.mark.parametrize("route", [route for route in CHANGES if ENTRIES[route].for_readers], ids=" ".join)
async def test_a_reader_may_do_what_takes_nothing_from_the_session(world: World, route: tuple[str, str]) -> None:
    async with world.people.client("ada") as ada, world.people.client("reader") as reader:
        own = await ada.make()
        named = {name: like(found) for name, found in world.ids.items()} | {"session_id": own}
        assert (await world.ask(reader, route, **named)).status_code in (200, 201, 404)
        for created in (await ada.get("/v1/sessions")).json()["sessions"]:
            if created["id"] == own or created["title"] == "Fork of a session":
                await ada.delete(f"/v1/sessions/{created['id']}")


async def test_the_owner_reaches_every_id_of_the_matrix(world: World) -> None:
    """The ids are good ones: their owner gets what is behind each of them."""
    async with world.people.client("ada") as ada:
        for path in (S, f"{S}/messages/{{message_id}}", f"{S}/tasks/{{task_id}}", f"{S}/tasks/{{task_id}}/output"):
            assert (await ada.get(world.address(path))).status_code == 200
        answers = await asyncio.gather(*(ada.get(world.address(f"{S}/{what}")) for what in ("requests", "queue")))
        assert [world.ids["request_id"] in answers[0].text, world.ids["message_id"] in answers[1].text] == [True, True]
