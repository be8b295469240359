"""Commands against a server: the same screens, lines and exit statuses as with a database, and nothing runs here."""

import asyncio
import json
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.cli.errors import Refusal
from holdfast.cli.target import find_folder, find_target
from tests.cli.processes import Place
from tests.cli.served import LONG, WORDS, Desk, key_of
from tests.client.way import http, somebody_else
from tests.http.world import Model, Server, patience
from tests.http.world import Place as ServerPlace


class World(NamedTuple):
    """A server that most tests share, and the keys of two people."""

    model: Model
    home: ServerPlace
    server: Server
    admin: str
    """Ada's: she may choose where sessions work."""
    user: str
    """Ben's."""


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with Model(WORDS) as model:
        home = ServerPlace(tmp_path_factory.mktemp("server"), model)
        async with home.serve("--auth", "keys", HOLDFAST_COMMANDS_WITHOUT_SANDBOX="allow") as server:
            yield World(model, home, server, await key_of(home, "ada", "admin"), await key_of(home, "ben"))


@pytest.fixture
def ada(tmp_path: Path, world: World) -> Desk:
    return Desk(tmp_path / "ada", world.server.url, world.admin)


@pytest.fixture
def ben(tmp_path: Path, world: World) -> Desk:
    return Desk(tmp_path / "ben", world.server.url, world.user)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder that sessions on the server work in."""
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


def lines_of(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


# The same as with a database


async def test_run_prints_the_answer_and_nothing_is_made_here(ada: Desk) -> None:
    assert await ada.run("run", "hello") == (0, "Hello, world.\n", "")
    assert await ada.run("run", "-", typed="hello") == (0, "Hello, world.\n", "")
    assert not ada.data.exists()


async def test_run_ends_with_the_status_that_its_help_promises(ada: Desk, there: Path, world: World) -> None:
    failed = await ada.run("run", "refuse this")
    assert (failed.code, failed.out) == (4, "")
    assert "[model_refused]" in failed.err
    denied = await ada.run("run", "write a note", "--dir", str(there))
    assert denied == (0, "Written.\n", ""), "nobody is asked, and what is not allowed is denied"
    assert not (there / "note.txt").exists()
    allowed = await ada.run("run", "write a note", "--dir", str(there), "--allow", "write")
    assert (allowed.code, (there / "note.txt").read_text()) == (0, "hi")
    world.model.hold(5)
    late = await ada.run("run", "long", "--timeout", "0.5")
    assert (late.code, late.out) == (5, "")
    assert re.search(r"It continues: holdfast chat --session \w{8} --url http\S+ \[timed_out\]", late.err)
    world.model.release()


async def test_json_lines_are_those_of_a_database(ada: Desk, tmp_path: Path, world: World) -> None:
    here = Place(tmp_path)
    here.options = ("--model", "openai/scripted", "--model-base-url", world.model.url)
    embedded, remote = [lines_of((await place.run("run", "hello", "--json")).out) for place in (here, ada)]
    assert [set(line) for line in remote if line["type"] != "delta"] == [
        set(line) for line in embedded if line["type"] != "delta"
    ]
    assert [line["event"]["type"] for line in remote if line["type"] == "event"] == [
        line["event"]["type"] for line in embedded if line["type"] == "event"
    ]
    for lines in (embedded, remote):
        assert "".join(line["text"] for line in lines if line["type"] == "delta") == "Hello, world."
        assert (lines[-1]["reason"], lines[-1]["text"]) == ("completed", "Hello, world.")


async def test_a_session_is_shown_the_same_from_the_database_and_from_the_server(
    ada: Desk, there: Path, world: World
) -> None:
    os.mkfifo(there / "pipe")
    done = await ada.run("run", "start it", "--dir", str(there), "--allow", "shell", "--json")
    result = lines_of(done.out)[-1]
    session, (task,) = result["session_id"], result["tasks"]
    assert task["working_directory"] == str(there)
    for words in (
        ("sessions", "list"),
        ("sessions", "show", session[:8]),
        ("sessions", "show", session, "--json", "--events"),
        ("sessions", "export", session),
    ):
        beside, here = await asyncio.gather(
            world.home.run(*words, HOLDFAST_OWNER="ada", COLUMNS="120"), ada.run(*words)
        )
        assert (here.code, here.err) == (beside.code, beside.err) == (0, ""), words
        hints = (f" --url {world.server.url}", f" --data-dir {world.home.data}")
        assert here.out.replace(hints[0], "") == beside.out.replace(hints[1], ""), words
    known, shown = await asyncio.gather(
        world.home.run("tasks", "show", task["id"], "--json", HOLDFAST_OWNER="ada"),
        ada.run("tasks", "show", task["id"], "--json"),
    )
    (beside_facts,), (facts,) = lines_of(known.out), lines_of(shown.out)
    assert facts == {**beside_facts, "duration_ms": facts["duration_ms"]}
    killed = await ada.run("tasks", "kill", task["id"][:6])
    assert (killed.code, killed.err) == (0, "")
    assert re.fullmatch(rf"Killed task {task['id']}; ended: .*\(pid \d+\)\.\n", killed.out)


async def test_a_session_goes_out_of_one_place_and_into_another(ada: Desk) -> None:
    session = lines_of((await ada.run("run", "hello", "--json")).out)[-1]["session_id"]
    file = ada.work / "talk.json"
    exported = await ada.run("sessions", "export", session[:8], str(file))
    assert exported.out.startswith("Exported to ")
    assert file.stat().st_mode & 0o777 == 0o600
    imported = await ada.run("sessions", "import", str(file))
    found = re.fullmatch(r"Imported as session (\S+)\.\n", imported.out)
    assert found is not None
    assert "Hello, world." in (await ada.run("sessions", "show", found[1])).out
    assert (await ada.run("sessions", "delete", found[1])).code == 2, "nobody is there to confirm it"
    assert (await ada.run("sessions", "delete", found[1], "--yes")).out == f"Deleted session {found[1][:8]}.\n"
    gone = await ada.run("sessions", "show", found[1])
    assert gone.code == 2
    assert "[session_not_found]" in gone.err


# Conversations


async def test_a_request_of_a_chat_is_answered_from_another_terminal(ada: Desk, there: Path) -> None:
    async with ada.piped("chat", "--dir", str(there)) as chat:
        chat.type("write a note")
        asked = await chat.until("(or deny)")
        command = re.search(r"To answer: holdfast approve (\w{8}) --url http", asked)
        assert command is not None
        assert command[1] in (await ada.run("requests")).out
        approved = await ada.run("approve", command[1])
        assert approved.out.endswith("Answered: permission write note.txt\nThe server continues the session.\n")
        await chat.until("Written.")
        again = await ada.run("deny", command[1])
        assert (again.code, again.out) == (1, "")
        assert "was already answered by the key of ada. [answered_already]" in again.err
        chat.end_of_input()
        await chat.ended()
    assert (there / "note.txt").read_text() == "hi"


async def test_a_chat_on_a_terminal_asks_stops_and_comes_back(ada: Desk, there: Path, world: World) -> None:
    async with ada.terminal("chat", "--dir", str(there)) as chat:
        await chat.until("ready")
        chat.type("ask me something\r")
        await chat.until("answer [1-2] >")
        chat.type("2\r")
        await chat.until("You said: ")
        world.model.hold(10)
        chat.type("long\r")
        await chat.until("word8")
        chat.type("\x03")
        await chat.until("■ Stopped.")
        world.model.release()
        chat.type("write a note\r")
        await chat.until("approve? [y]es")
        chat.type("\x04")
        assert await chat.ended() == 0
        assert "It waits for an answer:" in chat.text
    async with ada.terminal("chat", "--dir", str(there)) as chat:
        await chat.until("it waits for an answer. /new starts another.")
        chat.type("y\r")
        await chat.until("Written.")
        chat.type("/title The note\r")
        await chat.until("The title is now")
        chat.type("/usage\r")
        await chat.until("model calls")
        chat.type("/quit\r")
        assert await chat.ended() == 0
    assert "The note" in (await ada.run("sessions", "list")).out


async def test_a_chat_without_a_folder_of_the_server_comes_back_to_where_it_was_typed(
    tmp_path: Path, ben: Desk
) -> None:
    asked = await ben.run("chat", typed="ask me something\n")
    assert (asked.code, "Which?" in asked.out) == (0, True)
    elsewhere = tmp_path / "ben" / "elsewhere"
    elsewhere.mkdir()
    back = await ben.run("chat", typed="/queue\n")
    assert "it waits for an answer" in back.out
    ben.work = elsewhere
    other = await ben.run("chat", typed="/queue\n")
    assert "Continuing session" not in other.out


async def test_a_command_goes_to_the_background_and_its_output_is_followed(ada: Desk, there: Path) -> None:
    os.mkfifo(there / "pipe")
    async with ada.piped("chat", "--dir", str(there), "--allow", "shell") as chat, patience():
        chat.type("wait for it")
        await chat.until("  one\n")
        (task,) = lines_of((await ada.run("tasks", "list", "--json")).out)
        assert task["foreground"]
        other = await ada.run("chat", "--session", task["session_id"], typed="/background\n/quit\n")
        assert other.code == 0, other.err
        await chat.until("It goes on.")
        async with ada.piped("tasks", "tail", task["id"]) as tail:
            await tail.until("one\n")
            await asyncio.to_thread((there / "pipe").write_text, "two\n")
            assert await tail.ended() == "one\ntwo\n"
        part = await ada.run("tasks", "tail", task["id"], "--no-follow", "--bytes", "4")
        assert part.out == "two\n"
        assert "completed · exit code 0" in part.err
        chat.end_of_input()
        await chat.ended()


async def test_ctrl_c_stops_a_run(ada: Desk, world: World) -> None:
    world.model.hold(5)
    child = await ada.start("run", "long", "--json")
    await world.model.until_held()
    assert child.stdout is not None
    async with patience():
        while b'"delta"' not in await child.stdout.readline():
            pass
        child.send_signal(signal.SIGINT)
        out, err = await child.communicate()
    assert (child.returncode, lines_of(out.decode())[-1]["reason"]) == (3, "stopped")
    assert b"[stopped]" in err
    world.model.release()


# The server goes, and comes back


@pytest.fixture
async def own_model() -> AsyncIterator[Model]:
    async with Model(WORDS) as model:
        yield model


@pytest.fixture
async def own(tmp_path: Path, own_model: Model) -> AsyncIterator[tuple[ServerPlace, Server, Desk]]:
    """A server that a test may kill, its place, and somebody who needs no key there."""
    place = ServerPlace(tmp_path / "server", own_model)
    async with place.serve() as server:
        desk = Desk(tmp_path / "desk", server.url)
        desk.environ["HOLDFAST_DATA_DIR"] = str(place.data)
        yield place, server, desk


async def test_a_run_outlives_its_server_and_ends_like_an_undisturbed_one(
    own: tuple[ServerPlace, Server, Desk], own_model: Model
) -> None:
    place, server, desk = own
    undisturbed = await desk.run("run", "long")
    own_model.hold(20)
    child = await desk.start("run", "long")
    await own_model.until_held()
    await server.end(signal.SIGKILL)
    own_model.release()
    async with place.serve(port=server.port), patience():
        out, err = await child.communicate()
        assert child.returncode == 0, err
        assert out.decode() == undisturbed.out == f"{LONG}\n"
        sessions = lines_of((await desk.run("sessions", "list", "--json")).out)
        shown = lines_of((await desk.run("sessions", "show", sessions[0]["id"], "--events", "--json")).out)
    assert [event["type"] for event in shown[0]["events"]].count("user.message") == 1


async def test_a_chat_says_quietly_that_the_server_was_away_and_shows_all_of_it(
    own: tuple[ServerPlace, Server, Desk], own_model: Model
) -> None:
    place, server, desk = own
    own_model.hold(20)
    async with desk.piped("chat") as chat:
        chat.type("long")
        await chat.until("word10")
        await server.end(signal.SIGKILL)
        await chat.until("· The connection to the server is lost; trying again.")
        own_model.release()
        async with place.serve(port=server.port):
            await chat.until("· Connected again.")
            chat.type("hello")
            chat.end_of_input()
            whole = await chat.ended()
            session = re.search(r"session (\w{8})", whole)
            assert session is not None
            shown = (await desk.run("sessions", "show", session[1])).out
    assert LONG in _flat(whole)
    assert "Hello, world." in whole
    assert [line for line in shown.splitlines() if line.startswith("> ")] == ["> long", "> hello"]


async def test_ctrl_c_leaves_a_chat_at_once_while_the_server_is_away(own: tuple[ServerPlace, Server, Desk]) -> None:
    _, server, desk = own
    async with desk.terminal("chat") as chat:
        await chat.until("ready")
        await server.end(signal.SIGKILL)
        await chat.until("the server is away")
        chat.type("is anybody there\r")
        await chat.until("queued: is anybody there")
        chat.type("\x03")
        assert await chat.ended() == 0
        assert "· Not known to have arrived: is anybody there" in chat.text


def _flat(text: str) -> str:
    return " ".join(text.split())


# What is refused


async def test_the_error_for_a_wrong_key_says_what_to_do_and_never_repeats_the_key(
    tmp_path: Path, world: World
) -> None:
    wrong = world.admin[:-5] + "xxxxx"
    desk = Desk(tmp_path, world.server.url)
    for words in (("chat",), ("run", "hello", "--key", wrong)):
        refused = await desk.run(*words, HOLDFAST_DEBUG="1")
        assert (refused.code, refused.out) == (2, "")
        assert "holdfast keys create" in refused.err
        assert refused.err.rstrip().endswith("[not_signed_in]")
        assert wrong not in refused.err


async def test_the_session_of_another_owner_is_not_found(ada: Desk, ben: Desk) -> None:
    session = lines_of((await ada.run("run", "hello", "--json")).out)[-1]["session_id"]
    for words in (("sessions", "show"), ("sessions", "delete", "--yes")):
        foreign, missing = await asyncio.gather(ben.run(*words, session), ben.run(*words, "never-was"))
        assert foreign.code == missing.code == 2
        assert foreign.err.replace(session, "ID") == missing.err.replace("never-was", "ID")


@pytest.mark.parametrize(
    ("option", "code"),
    [(("--dir", "/"), "directory_not_allowed"), (("--allow", "shell"), "rule_not_allowed")],
)
async def test_a_refusal_of_the_server_is_printed_with_its_code(ben: Desk, option: tuple[str, str], code: str) -> None:
    refused = await ben.run("run", "hello", *option)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.rstrip().endswith(f"[{code}]")


URL = "http://127.0.0.1:8787"


@pytest.mark.parametrize("name", ["database", "data_dir", "model_base_url", "sandbox", "sandbox_network"])
@pytest.mark.parametrize(("url", "environ"), [(URL, {}), (None, {"HOLDFAST_URL": URL})])
def test_options_about_a_database_do_not_go_with_a_server(name: str, url: str | None, environ: dict[str, str]) -> None:
    with pytest.raises(Refusal) as refused:
        find_target({name: "given"}, url=url, key=None, environ=environ)
    source = "--url" if url else "HOLDFAST_URL"
    assert f"--{name.replace('_', '-')} can't be used with {source}" in refused.value.message


def test_a_folder_of_a_server_has_a_whole_path_and_a_local_one_its_name() -> None:
    theirs = find_target({}, url=URL, key="hf_key", environ={})
    assert find_folder(theirs, "/srv/project").directory == "/srv/project"
    assert find_folder(theirs, None).directory is None
    with pytest.raises(Refusal) as refused:
        find_folder(theirs, "project")
    assert refused.value.code == "folder_not_absolute"
    ours = find_target({}, url=URL, key=None, environ={})
    assert find_folder(ours, None).directory == str(Path.cwd().resolve())


async def test_a_key_without_a_server_is_refused_and_not_repeated(place: Place) -> None:
    refused = await place.run("sessions", "list", "--key", "hf_secret")
    assert refused.code == 2
    assert "--url or HOLDFAST_URL" in refused.err
    assert "hf_secret" not in refused.err


async def test_no_server_and_another_program_have_different_errors(tmp_path: Path) -> None:
    async with somebody_else(http("200 OK", b"<html>hello</html>")) as url:
        other = await Desk(tmp_path, url, "hf_key").run("sessions", "list")
    absent = await Desk(tmp_path, url, "hf_key").run("sessions", "list")
    assert (other.code, other.out) == (2, "")
    assert other.err.rstrip().endswith("[not_holdfast]")
    assert (absent.code, absent.out) == (1, "")
    assert "`holdfast serve`" in absent.err
    assert absent.err.rstrip().endswith("[server_unreachable]")
    wrong = await Desk(tmp_path, "127.0.0.1:8787").run("sessions", "list")
    assert (wrong.code, "[url_invalid]" in wrong.err) == (2, True)


# A server of one's own


async def test_a_server_of_ones_own_needs_no_key_and_works_in_this_folder(
    tmp_path: Path, own: tuple[ServerPlace, Server, Desk]
) -> None:
    _, server, desk = own
    done = await desk.run("run", "write a note", "--allow", "write")
    assert done == (0, "Written.\n", "")
    assert (desk.work / "note.txt").read_text() == "hi"
    other = Desk(tmp_path / "other", server.url)
    assert (await other.run("sessions", "list")).code == 2, "the token is in another data directory"
    link = Desk(tmp_path / "link", f"{server.url}/#token={server.token}")
    waits = await link.run("chat", typed="ask me something\n")
    assert f"--url {server.url}\n" in waits.out
    assert server.token not in waits.out + waits.err


async def test_the_environment_may_name_the_server(ada: Desk, world: World) -> None:
    ada.environ["HOLDFAST_URL"] = world.server.url
    words = ada.command("run", "hello")[:-2]
    async with patience():
        done = await asyncio.create_subprocess_exec(
            *words, env=ada.environ, cwd=ada.work, stdout=PIPE, stderr=PIPE, stdin=DEVNULL
        )
        assert await done.communicate() == (b"Hello, world.\n", b"")
