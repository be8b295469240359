"""`holdfast sessions` and `holdfast db`: what is there, by the beginning of its id, out of the database and back."""

import json
import sqlite3

import msgspec

from holdfast.cli.session_lines import session_line
from holdfast.events.ids import Position
from holdfast.protocol.event import EventView
from holdfast.protocol.session import SessionView
from tests.cli.processes import Place
from tests.cli.scripts import model


async def session_of(place: Place, prompt: str, *options: str) -> str:
    done = await place.run("run", prompt, "--json", *options)
    return str(json.loads(done.out.splitlines()[-1])["session_id"])


async def test_sessions_are_listed_found_and_shown(place: Place) -> None:
    async with model(place):
        first = await session_of(place, "about apples")
        second = await session_of(place, "about pears")
    listed = await place.run("sessions", "list")
    assert [line.split()[0] for line in listed.out.splitlines()] == [second[:8], first[:8]]
    found = await place.run("sessions", "list", "--search", "apples", "--json")
    assert [json.loads(line)["id"] for line in found.out.splitlines()] == [first]
    shown = await place.run("sessions", "show", first[:4])
    assert "> about apples\n\nYou said about apples.\n" in shown.out
    assert first in shown.out
    log = await place.run("sessions", "show", first, "--events", "--json")
    events = json.loads(log.out)["events"]
    assert [event["position"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "session.start"


async def test_json_of_a_session_has_the_fields_that_http_serves(place: Place) -> None:
    async with model(place):
        session = await session_of(place, "hello")
    listed = json.loads((await place.run("sessions", "list", "--json")).out)
    shown = json.loads((await place.run("sessions", "show", session, "--json", "--events")).out)
    assert set(listed) == set(SessionView.__struct_fields__)
    assert {name: shown[name] for name in listed} == listed
    assert set(shown) - set(listed) == {"working_directory", "context", "events"}
    assert all(set(event) == set(EventView.__struct_fields__) for event in shown["events"])
    assert (listed["id"], listed["head"], listed["pending_requests"]) == (session, len(shown["events"]), 0)


def test_the_line_of_a_session_counts_its_open_requests_and_queued_messages() -> None:
    session = SessionView(
        id="0123456789",
        title="Build it",
        status="waiting",
        turn_id="t",
        pending_requests=1,
        waiting_messages=2,
        unread=False,
        pinned=False,
        model=None,
        parent=None,
        metadata={},
        head=Position(4),
        seen=Position(4),
        created_at=0,
        updated_at=0,
    )
    assert "  waiting (1 to answer, 2 in queue)  Build it" in session_line(session)
    queued = msgspec.structs.replace(session, status="queued", pending_requests=0)
    assert "  queued (2 in queue)     Build it" in session_line(queued)


async def test_a_session_is_deleted_only_after_a_confirmation(place: Place) -> None:
    async with model(place):
        session = await session_of(place, "hello")
    refused = await place.run("sessions", "delete", session[:6])
    assert refused.code == 2
    assert "[not_confirmed]" in refused.err
    async with place.terminal("sessions", "delete", session) as terminal:
        await terminal.until("[y/N]")
        terminal.type("n\n")
        assert await terminal.ended() == 2
    assert (await place.run("sessions", "show", session)).code == 0
    assert (await place.run("sessions", "delete", session[:6], "--yes")).code == 0
    gone = await place.run("sessions", "show", session)
    assert (gone.code, gone.out) == (2, "")
    assert "[session_not_found]" in gone.err


async def test_a_session_whose_folder_was_replaced_goes_on_where_it_is_moved(place: Place) -> None:
    folder = place.work
    async with model(place):
        session = await session_of(place, "hello", "--allow", "write")
        folder.rename(folder.with_name("old"))
        folder.mkdir()
        refused = await place.run("run", "write", "--session", session)
        assert "choose the folder for this session again" in refused.out
        assert not (folder / "a.txt").exists()
        moved = await place.run("sessions", "move", session[:6], ".")
        assert moved.code == 0, moved.err
        assert f"works in {folder} from its next step on" in moved.out
        assert (await place.run("run", "write", "--session", session)).code == 0
        assert (folder / "a.txt").read_text() == "written"
    for words, code in ((("nope", "."), "session_not_found"), ((session, "no-such-folder"), "directory_not_found")):
        done = await place.run("sessions", "move", *words)
        assert (done.code, done.out) == (2, "")
        assert f"[{code}]" in done.err


async def test_an_exported_session_comes_back_as_a_new_one_with_the_same_words(place: Place) -> None:
    async with model(place):
        session = await session_of(place, "hello")
    file = place.work / "talk.json"
    assert (await place.run("sessions", "export", session, str(file))).code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    again = await place.run("sessions", "export", session, str(file))
    assert again.code == 1
    assert "[file_not_usable]" in again.err
    imported = await place.run("sessions", "import", str(file))
    assert imported.code == 0, imported.err
    made = imported.out.split()[-1].rstrip(".")
    assert made != session
    shown = await place.run("sessions", "show", made)
    assert "> hello\n\nYou said hello.\n" in shown.out
    bad = await place.run("sessions", "import", "-", typed="{}")
    assert (bad.code, bad.out) == (2, "")
    assert "[import_invalid]" in bad.err


async def test_unknown_short_and_ambiguous_ids_have_different_errors(place: Place) -> None:
    for words in (
        ("sessions", "show", "nope"),
        ("sessions", "export", "no-such-session"),
        ("chat", "--session", "abc"),
    ):
        done = await place.run(*words)
        assert (done.code, done.out) == (2, "")
        assert "[session_not_found]" in done.err
    unknown = await place.run("approve", "no-such-request")
    assert (unknown.code, unknown.out) == (2, "")
    assert "[request_not_found]" in unknown.err


async def test_a_backup_is_a_database_and_never_replaces_a_file(place: Place) -> None:
    async with model(place):
        await session_of(place, "hello")
    file = place.work / "copy.db"
    assert (await place.run("db", "backup", str(file))).code == 0
    again = await place.run("db", "backup", str(file))
    assert again.code == 1
    assert "exists already" in again.err
    with sqlite3.connect(file) as db:
        assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)
    db.close()
    status = await place.run("db", "status", "--json")
    found = json.loads(status.out)
    assert (found["sessions"], found["waiting_requests"], found["unfinished_sessions"]) == (1, 0, 0)
    assert found["path"] == str(place.data / "holdfast.db")
    assert found["schema_version"] >= 1
