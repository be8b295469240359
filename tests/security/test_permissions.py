"""Permissions for always are listed with their origin, and a revocation takes effect at once, everywhere."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.app import Runtime
from holdfast.events.ids import Key, Owner, RequestId
from holdfast.events.session import SettingsChanged
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.server.errors import NotFound
from holdfast.store.grants import GrantOrigin
from tests.cli.processes import Place as Desk
from tests.faults.world import note_beside, runtime_on
from tests.faults.world import until_idle as turn_over
from tests.http.test_requests import until_idle
from tests.http.world import Client

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "test.db"
    if request.param == "postgresql":
        note_beside(path).write_text(request.getfixturevalue("postgres_url"))
    return path


def writer() -> ScriptedModel:
    """Writes a file at each message."""
    write = Reply(tool_calls=(ScriptedCall("create", {"path": "a.txt", "file_text": "x"}),))
    return ScriptedModel(Script(rules=(Rule(replies=(write, Reply(text="Done."))),)))


async def writes_freely(session: Session) -> bool:
    """Whether it writes without asking; what it asks is denied."""
    turn = await session.run("write")
    for request in turn.requests:
        await session.deny(request.id)
    if turn.requests:
        await session.stop()
    return not turn.requests


async def granted(runtime: Runtime, session: Session, place: str, rule: str, by: str = "ada") -> None:
    """As an approval for always does, without a request."""
    await runtime.operations.grant(
        session.key.owner, place, (rule,), GrantOrigin(session.id, by, time.time_ns() // 1_000_000)
    )
    await runtime.operations.record(session.key, SettingsChanged(place_rules=(rule,)))


async def granted_always(runtime: Runtime, session: Session, place: str, by: str = "ada") -> None:
    """As a surface does when a person says always."""
    turn = await session.run("write")
    (request,) = turn.requests
    await runtime.operations.approve_always(session.key, RequestId(request.id), place, answered_by=by)


@pytest.mark.parametrize("everywhere", [False, True])
async def test_an_always_is_listed_and_taken_back_in_every_session_and_through_every_process(
    database: Path, tmp_path: Path, everywhere: bool
) -> None:
    work = str(tmp_path)
    place = "" if everywhere else work
    async with runtime_on(database, writer()) as one, runtime_on(database, writer(), work=False) as two:
        first = await one.session(working_directory=work)
        await granted_always(one, first, place)
        later = await one.session(working_directory=work)
        await granted(one, later, place, "write", by="bob")
        assert await writes_freely(first)
        assert await writes_freely(later)
        (found,) = await two.permissions()
        assert (found.rule, found.scope) == ("write", "everywhere" if everywhere else "directory")
        assert found.directory == (None if everywhere else work)
        assert [(origin.granted_by, origin.session_id) for origin in found.origins] == [
            ("ada", first.id),
            ("bob", later.id),
        ]
        assert all(origin.granted_at for origin in found.origins)
        assert await two.revoke_permission(found.id) == found
        assert await one.permissions() == ()
        assert not await writes_freely(first), "it does not hold in the session that it was granted in"
        assert not await writes_freely(later)
        with pytest.raises(NotFound, match="There is no permission"):
            await two.revoke_permission(found.id)
        await granted(one, first, place, "write")
        assert await writes_freely(first), "and can be granted again"


async def test_an_always_that_is_revoked_before_its_answer_is_promoted_holds_nowhere(
    database: Path, tmp_path: Path
) -> None:
    async with runtime_on(database, writer()) as first:
        asking = await first.session(working_directory=str(tmp_path))
        (request,) = (await asking.run("write")).requests
    async with runtime_on(database, writer(), work=False) as idle:
        await idle.operations.approve_always(asking.key, RequestId(request.id), str(tmp_path))
        (found,) = await idle.permissions()
        await idle.revoke_permission(found.id)
        assert await idle.permissions() == ()
    async with runtime_on(database, writer()) as last:
        session = last.open(asking.id)
        await turn_over(session)
        assert (tmp_path / "a.txt").exists()
        assert await session.permissions() == ()
        assert not await writes_freely(session)


async def test_permissions_of_a_session_are_listed_and_revoked_in_it(database: Path, tmp_path: Path) -> None:
    async with runtime_on(database, writer()) as runtime:
        session = await runtime.session(working_directory=str(tmp_path), allow=["read(/etc/motd)"])
        turn = await session.run("write")
        await runtime.operations.decide_permission(
            session.key, turn.requests[0].id, "approved-for-session", answered_by="ada"
        )
        await session.result_of((await session.send("write")).message_id)
        from_the_start, approved = await session.permissions()
        assert (from_the_start.rule, approved.rule) == ("read(/etc/motd)", "write")
        assert {found.scope for found in (from_the_start, approved)} == {"session"}
        assert [origin.granted_by for origin in approved.origins] == ["ada"]
        assert approved.session_id == session.id
        assert await runtime.permissions() == (), "it is nobody else's"
        await session.revoke_permission(approved.id)
        (left,) = await session.permissions()
        assert left == from_the_start, "what else is granted stays, and came from where it came"
        assert not await writes_freely(session)
        for gone in (approved.id, "", "nobody"):
            with pytest.raises(NotFound):
                await session.revoke_permission(gone)


async def test_a_permission_of_another_owner_is_the_same_as_none(database: Path, tmp_path: Path) -> None:
    async with runtime_on(database, writer()) as runtime:
        session = await runtime.session(working_directory=str(tmp_path))
        await granted(runtime, session, str(tmp_path), "write")
        (found,) = await runtime.permissions()
        others = runtime.operations
        assert await others.permissions(Owner("mallory")) == ()
        for permission_id in (found.id, "0" * 16):
            with pytest.raises(NotFound, match=f"There is no permission {permission_id}"):
                await others.revoke_permission(Owner("mallory"), permission_id)
        with pytest.raises(NotFound, match="There is no session"):
            await others.session_permissions(Key(Owner("mallory"), session.key.session))
        assert await runtime.permissions() == (found,)


async def test_a_revocation_that_is_cut_short_leaves_it_listed_and_can_be_repeated(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runtime_on(database, writer()) as runtime:
        session = await runtime.session(working_directory=str(tmp_path))
        await granted_always(runtime, session, str(tmp_path))
        (found,) = await runtime.permissions()

        async def cut(*given: Any, **more: Any) -> bool:
            raise ConnectionError("cut")

        with monkeypatch.context() as broken:
            broken.setattr(runtime.store, "revoke_grant", cut)
            with pytest.raises(ConnectionError):
                await runtime.revoke_permission(found.id)
        assert await runtime.permissions() == (found,)
        await runtime.revoke_permission(found.id)
        assert await runtime.permissions() == ()


# Surfaces


async def test_the_surfaces_of_a_server_list_it_and_take_it_back(client: Client, tmp_path: Path) -> None:
    session = await client.make(working_directory=str(tmp_path))
    await client.say(session, "write a note")
    (request,) = (await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]
    answer = {"decision": "approve_always"}
    assert (await client.post(f"/v1/sessions/{session}/requests/{request['id']}", json=answer)).is_success
    (found,) = (await client.get("/v1/permissions")).json()["permissions"]
    (origin,) = found["origins"]
    assert (found["rule"], found["scope"], found["directory"]) == ("write", "directory", str(tmp_path))
    assert (origin["granted_by"], origin["session_id"]) == ("local", session)
    await until_idle(client, session)
    held = (await client.get(f"/v1/sessions/{session}/permissions")).json()["permissions"]
    assert found in held
    desk = Desk(tmp_path)
    at = ("--url", str(client.base_url), "--key", client.headers["authorization"].partition(" ")[2])
    listed = await _run(desk, "permissions", "list", *at)
    assert f"{found['id']}  write  in {tmp_path}" in listed
    assert f"by local in session {session[:8]}" in listed
    (as_json,) = (await _run(desk, "permissions", "list", "--json", *at)).splitlines()
    assert json.loads(as_json) == found
    assert "Revoked: write" in await _run(desk, "permissions", "revoke", found["id"][:6], *at)
    assert (await client.get("/v1/permissions")).json() == {"permissions": []}
    gone = await client.delete(f"/v1/permissions/{found['id']}")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "permission_not_found")
    again = await client.make(working_directory=str(tmp_path))
    await client.say(again, "write a note")
    assert (await client.get(f"/v1/sessions/{again}/requests")).json()["requests"]


async def _run(desk: Desk, *words: str) -> str:
    """A command about a server: it has no folder of its own."""
    desk.command = lambda *given: [*Desk.command(desk, *given)[:3], *given]  # type: ignore[method-assign]
    done = await desk.run(*words)
    assert done.code == 0, done.err
    return done.out


async def test_the_command_line_does_the_same_on_a_database_of_this_machine(place: Desk) -> None:
    place.data.mkdir(mode=0o700)
    async with Runtime(database=place.data / "holdfast.db", model=writer()) as runtime:
        session = await runtime.session(working_directory=str(place.work), allow=["read(/etc/motd)"])
        await granted(runtime, session, "", "shell(ls)", by="ada\u202e")
    listed = await place.run("permissions", "list")
    assert "shell(ls)  everywhere" in listed.out
    assert f"by ada\\u202e in session {session.id[:8]}" in listed.out
    of_session = await place.run("permissions", "list", "--session", session.id[:8], "--json")
    rules = {found["rule"]: found for found in map(json.loads, of_session.out.splitlines())}
    assert set(rules) == {"read(/etc/motd)", "shell(ls)"}
    refused = await place.run("permissions", "revoke", rules["shell(ls)"]["id"], "--session", session.id)
    assert (refused.code, "[permission_not_of_session]" in refused.err) == (2, True)
    for rule, more in (("read(/etc/motd)", ("--session", session.id)), ("shell(ls)", ())):
        assert (await place.run("permissions", "revoke", rules[rule]["id"], *more)).code == 0
    assert (await place.run("permissions", "list")).out == "Nothing is allowed for always.\n"
    unknown = await place.run("permissions", "revoke", "0123456789")
    assert (unknown.code, "[permission_not_found]" in unknown.err) == (2, True)
