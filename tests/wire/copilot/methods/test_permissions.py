"""Modes and approvals: the calls that a session may make without asking."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.events.session import SettingsChanged
from holdfast.models.scripted import ScriptedCall
from holdfast.store.grants import MAX_GRANTS
from tests.wire.copilot.methods.world import Desk, Refused, Session, desk_at

pytestmark = pytest.mark.anyio

WRITES = ScriptedCall("create", {"path": "notes.txt", "file_text": "Hi"})
RUNS = ScriptedCall("bash", {"command": "true", "description": "Nothing"})


async def _pending(session: Session) -> list[Any]:
    found: list[Any] = (await session.ask("permissions.pendingRequests"))["items"]
    return found


async def test_approve_all_answers_open_and_later_requests(tmp_path: Path) -> None:
    async with desk_at(tmp_path, WRITES, WRITES, "Written.") as desk:
        session = await desk.client().session()
        await session.ask("send", prompt="Write")
        await session.client.until("permission.requested")
        assert await session.ask("permissions.setApproveAll", enabled=True) == {"success": True}
        await session.client.until("session.idle")
        assert len(session.client.data("permission.requested")) == 1
        assert [data["result"] for data in session.client.data("permission.completed")] == [{"kind": "approved"}]
        assert (tmp_path / "work" / "notes.txt").read_text() == "Hi"


async def test_approve_all_can_be_switched_off(tmp_path: Path) -> None:
    async with desk_at(tmp_path, WRITES, "Written.") as desk:
        session = await desk.client().session()
        await session.ask("permissions.setApproveAll", enabled=True)
        assert await session.ask("permissions.getMode") == {"mode": "allow-all"}
        await session.ask("permissions.setApproveAll", enabled=False)
        assert await session.ask("permissions.getMode") == {"mode": "manual"}
        await session.ask("send", prompt="Write")
        await session.client.until("permission.requested")


async def test_approved_rules_stay_when_approve_all_ends(desk: Desk, session: Session) -> None:
    key = desk.key(session)
    await session.ask("permissions.locations.addToolApproval", locationKey="", approval={"kind": "write"})
    other = await session.client.session()
    await other.ask("permissions.setApproveAll", enabled=True)
    await other.ask("permissions.setApproveAll", enabled=False)
    assert (await desk.runtime.operations.state(desk.key(other))).place_rules == ("write",)
    assert (await desk.runtime.operations.state(key)).allow == []


async def test_lasting_approvals_beyond_the_bound_are_refused_and_the_request_stays_open(tmp_path: Path) -> None:
    async with desk_at(tmp_path, WRITES, "Written.") as desk:
        session = await desk.client().session()
        owner = desk.key(session).owner
        await desk.runtime.store.grant(owner, "", [f"read({number})" for number in range(MAX_GRANTS)])
        with pytest.raises(Refused, match="Revoke some"):
            await session.ask("permissions.locations.addToolApproval", locationKey="", approval={"kind": "write"})
        await session.ask("send", prompt="Write")
        asked = await session.client.until("permission.requested")
        answer = "permissions.handlePendingPermissionRequest"
        with pytest.raises(Refused, match="Revoke some"):
            await session.ask(answer, requestId=asked["requestId"], result={"kind": "approve-permanently"})
        assert len(await _pending(session)) == 1
        assert await session.ask(answer, requestId=asked["requestId"], result={"kind": "approve-once"}) == {
            "success": True
        }


async def test_an_approval_for_a_location_needs_one(tmp_path: Path) -> None:
    async with desk_at(tmp_path, WRITES, "Written.") as desk:
        session = await desk.client().session()
        await session.ask("send", prompt="Write")
        asked = await session.client.until("permission.requested")
        await desk.runtime.operations.record(desk.key(session), SettingsChanged(working_directory=""))
        answer = "permissions.handlePendingPermissionRequest"
        with pytest.raises(Refused, match="no directory"):
            await session.ask(answer, requestId=asked["requestId"], result={"kind": "approve-for-location"})
        assert await desk.runtime.store.grants(desk.key(session).owner) == ()
        assert len(await _pending(session)) == 1


async def test_session_approvals_can_be_reset(tmp_path: Path) -> None:
    async with desk_at(tmp_path, WRITES, "Written.") as desk:
        session = await desk.client().session()
        await session.ask("send", prompt="Write")
        asked = await session.client.until("permission.requested")
        await session.ask(
            "permissions.handlePendingPermissionRequest",
            requestId=asked["requestId"],
            result={"kind": "approve-for-session"},
        )
        await session.client.until("session.idle")
        assert (await desk.runtime.operations.state(desk.key(session))).allow == ["write"]
        assert await session.ask("permissions.resetSessionApprovals") == {"success": True}
        assert (await desk.runtime.operations.state(desk.key(session))).allow == []


async def test_assisted_mode_is_refused(session: Session) -> None:
    assert await session.ask("permissions.setMode", mode="assisted") == {"success": False, "mode": "manual"}
    assert await session.ask("permissions.setMode", mode="allow-all") == {"success": True, "mode": "allow-all"}
    assert await session.ask("permissions.setMode", mode="manual") == {"success": True, "mode": "manual"}


@pytest.mark.parametrize("enabled", [None, "yes", 1])
async def test_approve_all_requires_a_boolean(session: Session, enabled: Any) -> None:
    with pytest.raises(Refused, match="neither true nor false"):
        await session.ask("permissions.setApproveAll", enabled=enabled)


async def test_pending_request_is_listed_until_it_is_answered(tmp_path: Path) -> None:
    async with desk_at(tmp_path, WRITES, "Written.") as desk:
        session = await desk.client().session()
        assert await _pending(session) == []
        await session.ask("send", prompt="Write")
        asked = await session.client.until("permission.requested")
        (found,) = await _pending(session)
        assert (found["requestId"], found["request"]["kind"]) == (asked["requestId"], "write")
        assert "notes.txt" in found["request"]["fileName"]
        await session.ask("permissions.setApproveAll", enabled=True)
        await session.client.until("session.idle")
        assert await _pending(session) == []


async def test_pending_command_is_listed_in_the_form_of_a_prompt(tmp_path: Path) -> None:
    async with desk_at(tmp_path, RUNS, "Done.") as desk:
        session = await desk.client().session()
        await session.ask("send", prompt="Run")
        await session.client.until("permission.requested")
        (found,) = await _pending(session)
        request = found["request"]
        assert (request["kind"], request["fullCommandText"]) == ("commands", "true")
        assert isinstance(request["commandIdentifiers"], list)
        assert isinstance(request["canOfferSessionApproval"], bool)


@pytest.mark.parametrize(
    ("command", "identifiers", "allow"),
    [
        ("true", ["true"], ["shell(true)", "shell(true *)"]),
        ("true; pwd", ["true", "pwd"], ["shell(true)", "shell(true *)", "shell(pwd)", "shell(pwd *)"]),
        ("env true", ["env"], ["shell(env true)"]),
        ("git push --help", ["git push"], ["shell(git push --help)"]),
        ("true", ["rm"], ["shell(true)"]),
        ("true", ["true", "bash"], ["shell(true)"]),
        ("true", ["*"], ["shell(true)"]),
        ("echo $HOME", ["echo $HOME"], ["shell(echo $HOME)"]),
        ("echo $HOME", ["echo"], ["shell(echo $HOME)"]),
    ],
)
async def test_approved_command_grants_only_its_programs_with_other_arguments(
    tmp_path: Path, command: str, identifiers: list[str], allow: list[str]
) -> None:
    async with desk_at(tmp_path, ScriptedCall("bash", {"command": command}), "Done.") as desk:
        session = await desk.client().session()
        await session.ask("send", prompt="Run")
        asked = await session.client.until("permission.requested")
        approval = {"kind": "commands", "commandIdentifiers": identifiers}
        await session.ask(
            "permissions.handlePendingPermissionRequest",
            requestId=asked["requestId"],
            result={"kind": "approve-for-session", "approval": approval},
        )
        await session.client.until("session.idle")
        assert (await desk.runtime.operations.state(desk.key(session))).allow == allow


async def test_approved_command_does_not_grant_a_command_hidden_in_another(tmp_path: Path) -> None:
    hidden = "true ${x:=$'\\x60id\\x3ePWN\\x60'}${x@P}"
    calls = [ScriptedCall("bash", {"command": command}) for command in ("true", "true a 'b c'", hidden)]
    async with desk_at(tmp_path, *calls, "Done.") as desk:
        session = await desk.client().session()
        await session.ask("send", prompt="Run")
        asked = await session.client.until("permission.requested")
        approval = {"kind": "commands", "commandIdentifiers": ["true"]}
        await session.ask(
            "permissions.handlePendingPermissionRequest",
            requestId=asked["requestId"],
            result={"kind": "approve-for-session", "approval": approval},
        )
        first = asked["requestId"]
        asked = await session.client.until("permission.requested", lambda data: data["requestId"] != first)
        assert asked["permissionRequest"]["fullCommandText"] == hidden, "and not the one before it"
        await session.ask(
            "permissions.handlePendingPermissionRequest", requestId=asked["requestId"], result={"kind": "reject"}
        )
        await session.client.until("session.idle")
        assert not (tmp_path / "work" / "PWN").exists()


@pytest.mark.parametrize("identifier", ["bash", "env", "git push", "ls; id", "python3", "*", ""])
async def test_program_that_runs_others_is_not_approved_for_a_location(tmp_path: Path, identifier: str) -> None:
    async with desk_at(tmp_path, "Done.") as desk:
        session = await desk.client().session()
        approval = {"kind": "commands", "commandIdentifiers": [identifier]}
        with pytest.raises(Refused, match="Approve such a command itself when it is asked about"):
            await session.ask("permissions.locations.addToolApproval", locationKey="/x", approval=approval)


async def test_client_that_stops_answering_permissions_is_not_asked(tmp_path: Path) -> None:
    async with desk_at(tmp_path, WRITES, "{last_tool_result}") as desk:
        session = await desk.client().session()
        assert await session.ask("permissions.setRequired", required=False) == {"success": True}
        answer = await session.say("Write")
        assert answer == "Permission denied and could not request permission from user"
        assert session.client.data("permission.requested") == []


async def test_approval_for_a_location_holds_for_the_next_session_there(tmp_path: Path) -> None:
    async with desk_at(tmp_path, WRITES, "Written.") as desk:
        client = desk.client()
        first = await client.session()
        place = await first.ask("permissions.locations.resolve", workingDirectory=str(tmp_path / "work"))
        assert place["locationType"] == "dir"
        approval = {"kind": "write"}
        await first.ask("permissions.locations.addToolApproval", locationKey=place["locationKey"], approval=approval)
        second = await client.session()
        assert await second.say("Write") == "Written."
        with pytest.raises(Refused, match="This approval can't be kept"):
            await first.ask("permissions.locations.addToolApproval", locationKey="x", approval={"kind": "memory"})


@pytest.mark.parametrize(
    ("path", "allowed"), [("x", True), ("a/../x", True), ("..", False), ("/etc", False), ("link", False)]
)
async def test_paths_within_the_working_directory_are_recognised(
    session: Session, tmp_path: Path, path: str, allowed: bool
) -> None:
    (tmp_path / "work" / "link").symlink_to(tmp_path)
    told = await session.ask("permissions.paths.isPathWithinWorkspace", path=path)
    assert told == {"allowed": allowed}
    listed = await session.ask("permissions.paths.list")
    assert listed == {"directories": [str(tmp_path / "work")], "primary": str(tmp_path / "work")}


@pytest.mark.parametrize("verb", ["configure", "modifyRules", "paths.add", "urls.setUnrestrictedMode"])
async def test_other_permission_methods_are_refused(session: Session, verb: str) -> None:
    with pytest.raises(Refused, match="This way of setting permissions is not supported by this runtime"):
        await session.ask(f"permissions.{verb}", rules={"denied": ["x"]}, path="/", enabled=True)
