"""A session works in the folder that it was given, and in no other that takes its place: not with its tools, not with
commands in the sandbox, not after a crash, and not if it was made by an earlier release."""

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.commands.bubblewrap import Bubblewrap
from holdfast.commands.command import Spec
from holdfast.commands.commands import Commands
from holdfast.config import load
from holdfast.events.ids import Key, Owner, SessionId
from holdfast.events.session import SettingsChanged
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.tools.working_directory import DirectoryRefused, WorkingDirectory, identity_of, place_to_start
from tests.commands.sandboxes import Sandbox
from tests.commands.world import everything, ran
from tests.http.test_identity import People, made_key
from tests.http.world import Client, Model, Place

SECRET = "nobody-else-may-read-this"

TRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "look": ("view", {"path": "secret.txt"}),
    "list": ("view", {"path": "."}),
    "search": ("grep", {"pattern": "."}),
    "find": ("glob", {"pattern": "**/*"}),
    "put": ("create", {"path": "planted.txt", "file_text": "planted"}),
    "replace": ("create", {"path": "secret.txt", "file_text": "planted"}),
    "change": ("edit", {"path": "secret.txt", "old_str": "nobody", "new_str": "changed"}),
    "run": ("exec", {"command": "cat secret.txt; ls -A; touch planted.txt"}),
    "go below": ("exec", {"command": "cat secret.txt; touch planted.txt", "work_dir": "deep"}),
    "stay": ("exec", {"command": "cat secret.txt; touch planted.txt", "run_in_background": True}),
}
"""The calls that the model makes in the folder, by the message."""


def script(folder: Path) -> Script:
    calls = {
        **TRIES,
        "swap": ("exec", {"command": f"mv sub moved && ln -s {folder}/private sub"}),
        "swap the data": ("exec", {"command": f"rm -rf sub && ln -s {folder}/data sub"}),
    }
    rules = [
        Rule(when=when, replies=(Reply(tool_calls=(ScriptedCall(*call),)), Reply(text="{last_tool_result}")))
        for when, call in sorted(calls.items(), key=lambda item: -len(item[0]))
    ]
    return Script(tuple(rules))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not in /tmp, of which every command has its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="holdfast-test-", ignore_cleanup_errors=True) as place:
        found = Path(place).resolve()
        (found / "private" / "deep").mkdir(parents=True)
        for secret in (found / "private" / "secret.txt", found / "private" / "deep" / "secret.txt"):
            secret.write_text(SECRET)
        (found / "people" / "ada" / "sub" / "deep").mkdir(parents=True)
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def environ(request: pytest.FixtureRequest, folder: Path) -> dict[str, str]:
    """Both stores, a real sandbox, and folders for each owner."""
    settings = {
        "HOLDFAST_SANDBOX": "bubblewrap",
        "HOLDFAST_USER_DIRECTORIES": f"{folder}/people/{{owner}}",
        "HOLDFAST_USER_RULES": "read,write,shell",
    }
    if request.param == "postgresql":
        settings["HOLDFAST_DATABASE"] = request.getfixturevalue("postgres_url")
    return settings


@pytest.fixture
async def world(folder: Path, environ: dict[str, str]) -> AsyncIterator["World"]:
    async with Model(script(folder)) as model:
        place = Place(folder, model, **environ)
        keys = {name: await made_key(place, name, owner, role) for name, owner, role in KEYS}
        yield World(folder, place, keys, environ)


KEYS = (("ada", "ada", "user"), ("root", "ada", "admin"))


class World:
    def __init__(self, folder: Path, place: Place, keys: dict[str, str], environ: dict[str, str]) -> None:
        self.folder = folder
        self.environ = environ
        self.place = place
        self.keys = keys
        self.outer = folder / "people" / "ada"
        self.sub = self.outer / "sub"

    @asynccontextmanager
    async def served(self) -> AsyncIterator[People]:
        async with self.place.serve("--auth", "keys") as server:
            yield People(server, self.keys)

    def untouched(self) -> bool:
        """Nothing was written where nobody may write."""
        files = sorted(str(path.relative_to(self.folder)) for path in (self.folder / "private").rglob("*"))
        contents = {path.read_text() for path in (self.folder / "private").rglob("*.txt")}
        return (files, contents) == (["private/deep", "private/deep/secret.txt", "private/secret.txt"], {SECRET})


async def made(client: Client, directory: Path) -> str:
    return await client.make(working_directory=str(directory), allow=["write", "shell"])


async def results(client: Client, session: str) -> list[tuple[bool, str]]:
    """Of all calls, in order: whether it went well, and the stable name of why not."""
    found = [event["data"] for event in await client.events(session) if event["type"] == "tool.execution_complete"]
    return [(data["success"], data.get("code", "")) for data in found]


async def told(client: Client, session: str) -> str:
    """All that anybody is told of a session."""
    requests = await client.get(f"/v1/sessions/{session}/requests")
    return "".join([str(await client.events(session)), requests.text])


@pytest.mark.parametrize("swap", ["swap", "swap the data"])
async def test_no_session_works_in_a_folder_that_another_replaced_by_a_link(world: World, swap: str) -> None:
    async with world.served() as people, people.client("ada") as ada:
        outer, inner = await made(ada, world.outer), await made(ada, world.sub)
        await ada.say(inner, "put")
        assert (world.sub / "planted.txt").read_text() == "planted"
        copy = (await ada.post(f"/v1/sessions/{inner}/fork", json={})).json()["id"]
        await ada.say(outer, swap)
        assert world.sub.is_symlink(), await told(ada, outer)
        before = sorted(os.listdir(world.folder / "data"))
        for session in (inner, copy):
            start = len(await results(ada, session))
            for text in TRIES:
                await ada.say(session, text)
            assert (await results(ada, session))[start:] == [(False, "directory_changed")] * len(TRIES)
            assert SECRET not in await told(ada, session)
        assert world.untouched()
        assert "planted.txt" not in os.listdir(world.folder / "data")
        assert set(before) <= set(os.listdir(world.folder / "data"))


async def test_a_folder_that_replaced_the_old_one_is_used_once_it_is_chosen(world: World) -> None:
    async with world.served() as people, people.client("ada") as ada:
        session = await made(ada, world.sub)
        world.sub.rename(world.outer / "old")
        for text in ("put", "run"):
            await ada.say(session, text)
        assert await results(ada, session) == [(False, "directory_missing")] * 2
        world.sub.mkdir()
        await ada.say(session, "put")
        assert (await results(ada, session))[2:] == [(False, "directory_changed")]
        said = (await ada.texts(session))[-1]
        assert "choose the folder for this session again" in said
        chosen = await ada.patch(f"/v1/sessions/{session}", json={"working_directory": str(world.sub)})
        assert chosen.status_code == 200
        for text in ("put", "run"):
            await ada.say(session, text)
        assert [success for success, _ in (await results(ada, session))[3:]] == [True, True]
        assert (world.sub / "planted.txt").exists()
        assert list((world.outer / "old").iterdir()) == [world.outer / "old" / "deep"]


async def test_the_identity_outlives_the_process_that_fixed_it(world: World) -> None:
    async with world.served() as people, people.client("ada") as ada:
        session = await made(ada, world.sub)
        await people.server.end(signal.SIGKILL)
    world.sub.rename(world.outer / "moved")
    world.sub.symlink_to(world.folder / "private")
    async with world.served() as people, people.client("ada") as ada:
        for text in TRIES:
            await ada.say(session, text)
        assert await results(ada, session) == [(False, "directory_changed")] * len(TRIES)
        assert SECRET not in await told(ada, session)
    assert world.untouched()


# Sessions that were made before folders were fixed


async def made_before(world: World, *sessions: str) -> None:
    """As an earlier release left them: a path, and nothing that says which folder that is."""
    async with Runtime(config=load({"data_dir": world.place.data}, world.environ)) as runtime:
        for session in sessions:
            key = Key(Owner("ada"), SessionId(session))
            await runtime.operations.record(key, SettingsChanged(directory_identity=None))
            assert (await runtime.operations.state(key)).directory_identity is None


async def test_an_older_session_goes_on_and_is_held_to_its_folder_from_its_first_use(world: World) -> None:
    async with world.served() as people, people.client("ada") as ada:
        session = await made(ada, world.sub)
        await people.server.end()
    await made_before(world, session)
    async with world.served() as people, people.client("ada") as ada:
        await ada.say(session, "put")
        assert await results(ada, session) == [(True, "")]
        await people.server.end(signal.SIGKILL)
    world.sub.rename(world.outer / "moved")
    world.sub.symlink_to(world.folder / "private")
    async with world.served() as people, people.client("ada") as ada:
        for text in TRIES:
            await ada.say(session, text)
        assert (await results(ada, session))[1:] == [(False, "directory_changed")] * len(TRIES)
    assert world.untouched()


async def test_an_older_session_whose_folder_had_become_a_link_does_not_follow_it(world: World) -> None:
    async with world.served() as people, people.client("ada") as ada:
        session = await made(ada, world.sub)
        await people.server.end()
    await made_before(world, session)
    world.sub.rename(world.outer / "moved")
    world.sub.symlink_to(world.folder / "private")
    async with world.served() as people, people.client("ada") as ada:
        for text in TRIES:
            await ada.say(session, text)
        assert {success for success, _ in await results(ada, session)} == {False}
        assert SECRET not in await told(ada, session)
    assert world.untouched()


# Without anything between the check and the use


@pytest.mark.parametrize("name", ["secret.txt", "."])
def test_a_folder_is_opened_as_the_one_that_it_was(folder: Path, name: str) -> None:
    sub = folder / "people" / "ada" / "sub"
    fixed = WorkingDirectory.of(str(sub), identity_of(str(sub)))
    with fixed.opened() as descriptor:
        assert os.path.samestat(os.fstat(descriptor), os.stat(sub))
    sub.rename(sub.parent / "moved")
    for replacement in (lambda: sub.symlink_to(folder / "private"), sub.mkdir, lambda: sub.write_text("")):
        replacement()
        with pytest.raises(DirectoryRefused) as refused, fixed.opened():
            pass
        assert refused.value.code == "directory_changed"
        sub.rmdir() if sub.is_dir() and not sub.is_symlink() else sub.unlink()
    with pytest.raises(DirectoryRefused) as refused, fixed.opened():
        pass
    assert refused.value.code == "directory_missing"


def test_a_link_on_the_way_is_not_followed_either(folder: Path) -> None:
    sub = folder / "people" / "ada" / "sub"
    fixed = WorkingDirectory.of(str(sub), identity_of(str(sub)))
    (folder / "people").rename(folder / "renamed")
    (folder / "people").symlink_to(folder / "renamed")
    with pytest.raises(DirectoryRefused) as refused, fixed.opened():
        pass
    assert refused.value.code == "directory_changed"


def test_a_folder_that_the_policy_no_longer_allows_is_refused(folder: Path) -> None:
    sub = str(folder / "people" / "ada" / "sub")
    fixed = WorkingDirectory.of(sub, identity_of(sub, limited=True), lambda path: False)
    with pytest.raises(DirectoryRefused) as refused, fixed.opened():
        pass
    assert refused.value.code == "directory_not_allowed"


async def test_a_command_gets_the_folder_that_was_checked_though_a_link_takes_its_place_before_it_starts(
    commands: Commands, sandbox: Sandbox, folder: Path
) -> None:
    sub = folder / "people" / "ada" / "sub"
    root = WorkingDirectory.of(str(sub), identity_of(str(sub)))
    confined = Bubblewrap(network=False, hidden=(sandbox.data,))
    with place_to_start(str(sub), root, by_root=True) as place:
        spec = Spec(
            command="cat secret.txt; touch planted.txt; ls -A",
            directory=place,
            inside=confined.inside(str(sub), root=str(root.real())),
            filter=confined.filter,
            wrapper=confined.program,
            merged=True,
        )
        sub.rename(sub.parent / "moved")
        sub.symlink_to(folder / "private")
        key, _ = await ran(commands, spec)
    assert SECRET not in (await everything(commands, key)).decode()
    assert not (folder / "private" / "planted.txt").exists()
