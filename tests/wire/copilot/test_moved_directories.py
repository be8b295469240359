"""A moved session works in its new folder, and never in another folder that takes its place: neither its tools nor its
shell, not even after a resume."""

from pathlib import Path

import pytest

from tests.wire.copilot.harness import Home, calls, says
from tests.wire.copilot.test_attachment_lifecycle import Client, Refused, clients_of

pytestmark = pytest.mark.anyio

SECRET = "nobody-else-may-read-this"


@pytest.fixture
def private(own_home: Home) -> Path:
    private = own_home.work / "private"
    private.mkdir()
    (private / "below").mkdir()
    (private / "secret.txt").write_text(SECRET)
    return private


def found_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def swapped(folder: Path, private: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(private)


async def is_refused(client: Client, session: str, private: Path) -> None:
    """Check that the model's tools and the client's commands are refused in the session's folder."""
    for prompt in ("Read it", "Write it", "Run it"):
        await client.run(session, prompt)
    for where in ({}, {"cwd": "."}, {"cwd": "below"}):
        with pytest.raises(Refused):
            await client.ask("session.shell.exec", sessionId=session, command="touch planted.txt", **where)
    told = str(await client.history(session))
    assert SECRET not in told
    assert told.count("choose the folder for this session again") >= 3
    assert found_in(private) == ["below", "secret.txt"]


async def test_moved_session_does_not_follow_a_folder_that_replaces_its_own(own_home: Home, private: Path) -> None:
    own_home.model.on("Read it", calls("view", path="secret.txt"), says("{last_tool_result}"))
    own_home.model.on("Write it", calls("create", path="planted.txt", file_text="x"), says("{last_tool_result}"))
    command = "cat secret.txt; touch planted.txt"
    own_home.model.on("Run it", calls("bash", command=command, description="x"), says("{last_tool_result}"))
    here, there = own_home.work / "here", own_home.work / "there"
    here.mkdir()
    there.mkdir()
    (there / "secret.txt").write_text("harmless")
    async with own_home.serve() as server:
        async with clients_of(server, 1) as (one,):
            session = await one.create(workingDirectory=str(here))
            await one.ask("session.permissions.setApproveAll", sessionId=session, enabled=True)
            await one.ask("session.metadata.setWorkingDirectory", sessionId=session, workingDirectory=str(there))
            await one.run(session, "Write it")
            assert (there / "planted.txt").exists()
            swapped(there, private)
            await is_refused(one, session, private)
        async with clients_of(server, 1) as (another,):
            await another.resume(session)
            await is_refused(another, session, private)
            await another.ask("session.metadata.setWorkingDirectory", sessionId=session, workingDirectory=str(here))
            await another.run(session, "Write it")
    assert (here / "planted.txt").exists()
    assert found_in(private) == ["below", "secret.txt"]
