"""Each owner works in a folder of their own: nobody makes a session in another's, and no command sees it."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.commands.bubblewrap import Bubblewrap
from holdfast.commands.command import Spec
from holdfast.commands.commands import Commands
from holdfast.events.ids import Owner
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.tools.user_directories import UserDirectories
from tests.commands.sandboxes import Sandbox
from tests.commands.world import everything, ran
from tests.http.test_identity import People, made_key
from tests.http.world import Client, Model, Place, code_of, patience


@pytest.mark.parametrize(
    "setting", ["{folder}", "{folder}/", "{folder}/{{owner}}", "{folder}/{{owner}}/", "{folder}/u-{{owner}}"]
)
def test_a_folder_is_an_owner_s_own_unless_it_is_shared_in_words(tmp_path: Path, setting: str) -> None:
    folder = tmp_path.resolve()
    own = UserDirectories((setting.format(folder=folder),))
    name = "u-ada" if "u-" in setting else "ada"
    ada = Owner("ada")
    assert own.contains(ada, f"{folder}/{name}")
    assert own.contains(ada, f"{folder}/{name}/project")
    for other in ("", "/bob", "/u-bob", f"/{name}-2", "/adam", f"/{name}/../bob"):
        found = (folder / other.lstrip("/")).resolve()
        assert not own.contains(ada, str(found)), other
    assert list(own.of_all_owners()) == [folder]
    shared = UserDirectories((f"shared:{folder}",))
    assert shared.contains(ada, f"{folder}/bob")
    assert list(shared.of_all_owners()) == []


@pytest.mark.parametrize("owner", ["..", ".", "", "a/b", "../bob", "a\0b", "bob/../ada", ".hidden", "a\nb", "é"])
def test_an_owner_whose_name_is_no_plain_one_has_no_folder(tmp_path: Path, owner: str) -> None:
    own = UserDirectories((f"{tmp_path}/{{owner}}",))
    assert list(own.of(Owner(owner))) == []


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[People]:
    place = Place(tmp_path)
    for name in ("ada", "bob", "team"):
        (tmp_path / "people" / name).mkdir(parents=True)
    (tmp_path / "people" / "ada" / "to-bob").symlink_to(tmp_path / "people" / "bob")
    (tmp_path / "team").mkdir()
    keys = {name: await made_key(place, name, name) for name in ("ada", "bob")}
    folders = f"{tmp_path}/people,shared:{tmp_path}/team"
    async with place.serve("--auth", "keys", HOLDFAST_USER_DIRECTORIES=folders) as server:
        yield People(server, keys)


async def test_a_session_can_not_be_created_in_or_moved_to_another_owners_folder(
    people: People, tmp_path: Path
) -> None:
    async with people.client("ada") as ada:
        session = await ada.make(working_directory=f"{tmp_path}/people/ada")
        await ada.make(working_directory=f"{tmp_path}/team")
        for directory in ("people", "people/bob", "people/ada/../bob", "people/ada/to-bob", "people/team", ""):
            wanted = {"working_directory": f"{tmp_path}/{directory}"}
            for refused in (
                await ada.post("/v1/sessions", json=wanted),
                await ada.patch(f"/v1/sessions/{session}", json=wanted),
            ):
                assert (refused.status_code, code_of(refused)) == (403, "directory_not_allowed"), directory
        moved = await ada.patch(f"/v1/sessions/{session}", json={"working_directory": f"{tmp_path}/team"})
        assert moved.status_code == 200


@pytest.fixture
def outside() -> Iterator[Path]:
    """Not in /tmp, of which every command has its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="holdfast-test-") as place:
        yield Path(place).resolve()


async def test_a_command_of_one_owner_sees_nothing_of_the_others(
    commands: Commands, sandbox: Sandbox, outside: Path
) -> None:
    folder = outside / "people"
    for name in ("ada", "bob"):
        (folder / name).mkdir(parents=True)
        (folder / name / "secret.txt").write_text(f"of {name}")
    confined = Bubblewrap(network=False, hidden=(sandbox.data,))
    own = UserDirectories((str(folder),))
    here = str(folder / "ada")
    spec = Spec(
        command="cat secret.txt; ls -A ..; cat ../bob/secret.txt; touch ../bob/planted",
        directory=here,
        inside=confined.inside(here, root=here, hidden=own.of_all_owners()),
        filter=confined.filter,
        wrapper=confined.program,
        merged=True,
    )
    key, _ = await ran(commands, spec)
    told = (await everything(commands, key)).decode()
    assert told.startswith("of adaada\n"), told
    assert "of bob" not in told
    assert not (folder / "bob" / "planted").exists()


LOOKS_AROUND = "cat secret.txt; ls -A ..; cat ../bob/secret.txt; touch ../bob/planted; true"


async def approved_look(client: Client, session: str) -> str:
    """The result of a command that looks around, which this client asks for and approves."""
    await client.say(session, "look around")
    one = f"/v1/sessions/{session}"
    (request,) = (await client.get(f"{one}/requests")).json()["requests"]
    assert (await client.post(f"{one}/requests/{request['id']}", json={"decision": "approve"})).status_code == 200
    async with patience(), client.follow(session) as frames:
        async for frame in frames:
            if frame.data.get("type") == "tool.execution_complete":
                result: str = frame.data["data"]["content"]
                return result
    raise AssertionError("the command ends")


@pytest.mark.parametrize("how", ["{folder}/people", "{folder}/people/{{owner}}"])
async def test_a_command_that_a_user_approves_on_a_real_server_sees_nothing_of_other_owners(
    sandbox: Sandbox, outside: Path, how: str
) -> None:
    for name in ("ada", "bob"):
        (outside / "people" / name).mkdir(parents=True)
        (outside / "people" / name / "secret.txt").write_text(f"of {name}\n")
    looks = (Reply(tool_calls=(ScriptedCall("exec", {"command": LOOKS_AROUND}),)), Reply(text="Seen."))
    environ = {"HOLDFAST_USER_DIRECTORIES": how.format(folder=outside), "HOLDFAST_USER_TOOLS": "exec"}
    async with Model(Script(rules=(Rule(replies=looks),))) as model:
        place = Place(outside / "server", model, **environ)
        keys = {"ada": await made_key(place, "ada", "ada")}
        async with place.serve("--auth", "keys", "--sandbox") as server, People(server, keys).client("ada") as ada:
            session = await ada.make(working_directory=str(outside / "people" / "ada"))
            told = await approved_look(ada, session)
    assert "of ada\\nada\\n" in told, told
    assert "of bob" not in told
    assert not (outside / "people" / "bob" / "planted").exists()


async def test_a_command_of_a_user_sees_nothing_of_other_owners_in_a_session_that_an_admin_made(
    sandbox: Sandbox, outside: Path
) -> None:
    for name in ("ada", "bob"):
        (outside / "people" / name).mkdir(parents=True)
        (outside / "people" / name / "secret.txt").write_text(f"of {name}\n")
    looks = (Reply(tool_calls=(ScriptedCall("exec", {"command": LOOKS_AROUND}),)), Reply(text="Seen."))
    environ = {"HOLDFAST_USER_DIRECTORIES": str(outside / "people"), "HOLDFAST_USER_TOOLS": "exec"}
    async with Model(Script(rules=(Rule(replies=looks),))) as model:
        place = Place(outside / "server", model, **environ)
        keys = {"user": await made_key(place, "user", "ada"), "admin": await made_key(place, "admin", "ada", "admin")}
        async with place.serve("--auth", "keys", "--sandbox") as server:
            people = People(server, keys)
            async with people.client("user") as user, people.client("admin") as admin:
                session = await admin.make(working_directory=str(outside / "people" / "ada"), tools=["exec"])
                copy = (await user.post(f"/v1/sessions/{session}/fork", json={})).json()["id"]
                told = [await approved_look(user, used) for used in (session, copy)]
    for result in told:
        assert "of ada\\nada\\n" in result, result
        assert "of bob" not in result
    assert not (outside / "people" / "bob" / "planted").exists()
