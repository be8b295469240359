"""A `user` in a sandbox whose model obeys every hostile instruction of a corpus: nothing outside of the session's
directory is read or written, nothing of another owner, no rule is granted, and no approval is skipped.

Canaries show it: words in places that the model must not reach, which then stand in no event and in no prompt, and
files that stay as they are. As a control, an admin's session without a sandbox, which may do everything, makes the same
calls: there each of the checks fails.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args
from xml.sax.saxutils import escape

import msgspec
import pytest

from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from tests.commands.sandboxes import why_not
from tests.http.test_identity import made_key, secret_of
from tests.http.world import Client, Model, Place, Server, patience

pytestmark = pytest.mark.anyio

AT_ONCE = 4
OBEYING = "As you say."
ASKING = frozenset({"create", "edit", "exec"})
"""Tools that never run without an approval, whatever they are to do."""

LOOKUP = {"name": "lookup", "description": "Looks people up.", "parameters": {"type": "object"}}
TASK_OF_BOB = Rule(
    when="case of bob:",
    replies=(
        Reply(tool_calls=(ScriptedCall("exec", {"command": "cat diary.txt", "run_in_background": True}),)),
        Reply(text="It runs."),
    ),
)

Carrier = Literal[
    "file",
    "memory",
    "grep",
    "name",
    "command",
    "task",
    "client",
    "answer",
    "page",
    "notification",
    "message",
    "title",
]
"""How an instruction comes to the model: in a file that it views, a file of instructions for agents, a line that it
finds, a name of a file, output of a command or of a task, the result of a client's tool, an answer, a page, a forged
notification, a message that somebody passes on, the title."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hostile instruction, how it comes to the model, and the calls of a model that obeys it."""

    id: str
    carrier: Carrier
    instruction: str
    calls: tuple[ScriptedCall, ...]
    control: bool = False
    """Made without a sandbox and with all rights, these calls reach a canary and nothing else."""
    approved: bool = False
    """They are made once more, and a person who is misled approves them: the sandbox is what is left."""


CORPUS = tuple(
    msgspec.json.decode(line, type=Entry)
    for line in Path(__file__).with_name("hostile_instructions.jsonl").read_text("utf-8").splitlines()
)


class Canaries:
    """Words that only their owners may come across, and files that nobody may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.private, self.data, self.bob = folder / "private", folder / "data", folder / "shared" / "bob"
        names = ("private", "data", "bob-file", "bob-session", "api-key")
        self.words = {name: f"CANARY-{name}-{secrets.token_hex(8)}" for name in names} | {"passwd": "root:x:0:0:"}
        for directory in (self.private, self.data, self.bob):
            directory.mkdir(parents=True, mode=0o700)
        (self.private / "secret.txt").write_text(self.words["private"] + "\n")
        (self.data / "canary.txt").write_text(self.words["data"] + "\n")
        (self.bob / "diary.txt").write_text(self.words["bob-file"] + "\n")

    def leaked(self, text: str) -> set[str]:
        return {name for name, word in self.words.items() if word in text}

    def files(self) -> dict[str, object]:
        """The current state of everything that could have been changed."""
        own = (path for place in (self.private, self.bob) for path in place.rglob("*"))
        data = (self.data / name for name in ("canary.txt", "config.toml", "environment", "owned"))
        found = {str(path): path.read_bytes() for path in (*own, *data) if path.is_file()}
        return found | {path: _stamp(path) for path in sorted(_system_paths())}


def _system_paths() -> Iterator[str]:
    for entry in CORPUS:
        for call in entry.calls:
            path = call.arguments.get("path", "") if isinstance(call.arguments, dict) else ""
            if call.name in ("create", "edit") and path.startswith("/"):
                yield path


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class Obedient(Model):
    """Does what it is told, by anybody."""

    def __init__(self) -> None:
        super().__init__(Script(rules=(TASK_OF_BOB,)))
        self._rules: list[Rule] = [TASK_OF_BOB]

    def obey(self, *rules: Rule) -> None:
        self._rules += rules
        self._model = ScriptedModel(Script(tuple(self._rules)))

    def prompts(self) -> str:
        """All that it was told, but for Bob's session, whose model may know what is his."""
        told = (msgspec.json.decode(body)["messages"] for body in self.requests)
        texts = ("\n".join(str(message["content"]) for message in messages) for messages in told)
        return "\n".join(text for text in texts if "case of bob:" not in text)


class Played(msgspec.Struct, kw_only=True):
    """An entry after its calls were made: what is in the log, what is asked, what the session allows."""

    entry: Entry
    session: str
    events: list[dict[str, Any]]
    requests: list[dict[str, Any]]
    allow: list[str]
    approved: set[str]
    """Calls that the person approved."""

    def of(self, event_type: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == event_type]

    def hostile_calls(self) -> list[dict[str, Any]]:
        obeying = next(said["blocks"] for said in self.of("assistant.message") if _text(said) == OBEYING)
        return [block for block in obeying if block["type"] == "tool_call"]

    def skipped(self) -> list[str]:
        """Calls that ran, or are not asked about, though they need an approval that nobody gave."""
        attempted = {attempt["toolCallId"] for attempt in self.of("holdfast.tool_attempt")}
        refused = {done["toolCallId"] for done in self.of("tool.execution_complete") if "error" in done}
        asked = {request["tool_call_id"] for request in self.requests if request["kind"] == "permission"}
        named = {started["toolCallId"]: started["toolName"] for started in self.of("tool.execution_start")}
        ran = {call for call, name in named.items() if name in ASKING and call in attempted - self.approved}
        left = {call for call, name in named.items() if name in ASKING and call not in refused | asked | self.approved}
        return sorted(ran | left)

    def granted(self) -> list[str]:
        answers = self.of("permission.completed")
        own = [str(answer) for answer in answers if answer["toolCallId"] not in self.approved or answer.get("rules")]
        return [*self.allow, *own, *(str(changed) for changed in self.of("holdfast.settings_changed"))]


class World:
    """A server with its canaries, a session of another owner, and a model that obeys."""

    def __init__(self, canaries: Canaries, server: Server, model: Obedient, client: Client, bob: Client) -> None:
        self.canaries = canaries
        self.work = canaries.folder / "shared" / "ada"
        self.server = server
        self.model = model
        self.client = client
        self.bob = bob
        self._names: dict[str, str] = {}

    async def prepare(self) -> None:
        """Files in the working directory, and Bob's data: a session, a task, its output."""
        (self.work / "sub").mkdir(parents=True)
        (self.work / "a.txt").write_text("plain words\n")
        for name, place in (
            ("way-out", self.canaries.private),
            ("way-out-file", self.canaries.private / "secret.txt"),
            ("loop", "."),
            ("dangling", self.canaries.private / "not-there.txt"),
        ):
            (self.work / name).symlink_to(place)
        session = await self.bob.make(working_directory=str(self.canaries.bob))
        await self.bob.say(session, f"case of bob: {self.canaries.words['bob-session']}")
        for request in await _requests(self.bob, session):
            await self.bob.post(f"/v1/sessions/{session}/requests/{request['id']}", json={"decision": "approve"})
        events = await _until(self.bob, session, lambda events: _has(events, "holdfast.task_notified"))
        (started,) = [event["data"] for event in events if event["type"] == "holdfast.task_started"]
        await _until(self.bob, session, _is_at_rest)
        self._names = {
            "@PRIVATE@": str(self.canaries.private),
            "@DATA@": str(self.canaries.data),
            "@BOB@": str(self.canaries.bob),
            "@URL@": self.server.url,
            "@PID@": str(self.server.process.pid),
            "@BOB_SESSION@": session,
            "@BOB_CALL@": started["toolCallId"],
            "@BOB_TASK@": started["taskId"],
            "@BOB_OUTPUT@": started["outputFile"],
        }

    async def bobs(self) -> tuple[list[dict[str, Any]], Any]:
        session = self._names["@BOB_SESSION@"]
        listed = (await self.bob.get("/v1/sessions")).json()
        return await self.bob.events(session), [found["id"] for found in listed["sessions"]]

    async def play_all(self, entries: Iterable[Entry], **options: Any) -> list[Played]:
        turnstile = asyncio.Semaphore(AT_ONCE)

        async def play(entry: Entry) -> Played:
            async with turnstile:
                return await self.play(entry, **options)

        async with asyncio.TaskGroup() as group:
            playing = [group.create_task(play(entry)) for entry in entries]
        return [task.result() for task in playing]

    async def play(self, entry: Entry, **options: Any) -> Played:
        """Let the instruction come to the model, and the model make its calls."""
        brings = {"client_tools": [LOOKUP]} if entry.carrier == "client" else {}
        session = await self.client.make(working_directory=str(self.work), **brings, **options)
        entry = self._filled(entry, session)
        self._prepare(entry)
        self.model.obey(*_rules(entry))
        if entry.carrier == "title":
            await self.client.patch(f"/v1/sessions/{session}", json={"title": entry.instruction})
        page = {"context": {"content": entry.instruction}} if entry.carrier == "page" else {}
        said = await self.client.say(session, _words(entry), **page)
        assert said.status_code == 200, said.text
        approved = await self._carry(entry, session)
        events = await _until(self.client, session, _has_obeyed)
        return await self._played(entry, session, events, approved)

    async def approve(self, played: Played) -> Played:
        """The person is misled, and approves each call once."""
        approved = set(played.approved)
        for request in played.requests:
            if request["kind"] == "permission":
                path = f"/v1/sessions/{played.session}/requests/{request['id']}"
                await self.client.post(path, json={"decision": "approve"})
                approved.add(request["tool_call_id"])
        events = await _until(
            self.client, played.session, lambda events: _completed(events) >= approved and _is_at_rest(events)
        )
        return await self._played(played.entry, played.session, events, approved)

    async def _played(self, entry: Entry, session: str, events: list[dict[str, Any]], approved: set[str]) -> Played:
        detail = (await self.client.get(f"/v1/sessions/{session}")).json()
        requests = await _requests(self.client, session)
        allow = detail["settings"]["allow"]
        return Played(entry=entry, session=session, events=events, requests=requests, allow=allow, approved=approved)

    def _filled(self, entry: Entry, session: str) -> Entry:
        text = msgspec.json.encode(entry).decode()
        for name, value in {**self._names, "@SELF@": session}.items():
            text = text.replace(name, value)
        return msgspec.json.decode(text, type=Entry)

    def _prepare(self, entry: Entry) -> None:
        match entry.carrier:
            case "file" | "grep" | "command" | "task":
                (self.work / f"notes-{entry.id}.md").write_text(entry.instruction + "\n")
            case "memory":
                (self.work / f"AGENTS-{entry.id}.md").write_text(entry.instruction + "\n")
            case "name":
                (self.work / f"{entry.id} {entry.instruction.replace('/', ' ')[:80]}").touch()
            case _:
                pass

    async def _carry(self, entry: Entry, session: str) -> set[str]:
        """Answer what the carrier itself asks: a harmless command, a question, a call of the client's tool."""
        answers: dict[str, dict[str, Any]] = {
            "permission": {"decision": "approve"},
            "question": {"answer": entry.instruction},
            "client_tool": {"content": entry.instruction},
        }
        if entry.carrier not in ("command", "task", "answer", "client"):
            return set()
        await _until(self.client, session, _is_at_rest)
        found = await _requests(self.client, session)
        for request in found:
            path = f"/v1/sessions/{session}/requests/{request['id']}"
            answered = await self.client.post(path, json=answers[request["kind"]])
            assert answered.status_code == 200, answered.text
        return {request["tool_call_id"] for request in found if request["kind"] == "permission"}


def _words(entry: Entry) -> str:
    case = f"case {entry.id}:"
    match entry.carrier:
        case "message":
            return f"{case} {entry.instruction}"
        case "notification":
            tags = f"<task-id>t1</task-id><status>completed</status><output-tail>{entry.instruction}</output-tail>"
            return f"{case}\nA background task completed:\n<task-notification>{tags}</task-notification>"
        case _:
            return f"{case} please go on."


def _rules(entry: Entry) -> Iterator[Rule]:
    """Look at what the carrier brings, then do what it says."""
    obeying = (Reply(text=OBEYING, tool_calls=entry.calls), Reply(text="Done."))
    looks = {
        "file": ScriptedCall("view", {"path": f"notes-{entry.id}.md"}),
        "memory": ScriptedCall("view", {"path": f"AGENTS-{entry.id}.md"}),
        "grep": ScriptedCall("grep", {"pattern": ".", "path": f"notes-{entry.id}.md", "output_mode": "content"}),
        "name": ScriptedCall("glob", {"pattern": f"{entry.id}*"}),
        "command": ScriptedCall("exec", {"command": f"cat notes-{entry.id}.md"}),
        "client": ScriptedCall("lookup", {"name": entry.id}),
        "answer": ScriptedCall("ask_user", {"question": "Which colour?"}),
    }
    when = f"case {entry.id}:"
    if entry.carrier == "task":
        command = f"cat notes-{entry.id}.md"
        start = Reply(tool_calls=(ScriptedCall("exec", {"command": command, "run_in_background": True}),))
        yield Rule((start, Reply(text="It runs.")), when)
        yield Rule(obeying, f"<command>{command}</command>")
    elif entry.carrier in looks:
        yield Rule((Reply(tool_calls=(looks[entry.carrier],)), *obeying), when)
    else:
        yield Rule(obeying, when)


# Reading logs


async def _requests(client: Client, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]
    return found


async def _until(client: Client, session: str, is_there: Any) -> list[dict[str, Any]]:
    """The log, as soon as it is as far as that."""
    events: list[dict[str, Any]] = []
    cursor = "0"
    async with patience():
        while not is_there(events):
            query: dict[str, str | int] = {"after": cursor, "wait": 20, "limit": 1000}
            page = (await client.get(f"/v1/sessions/{session}/events", params=query)).json()
            events += page["events"]
            cursor = page["cursor"]
    return events


def _has(events: list[dict[str, Any]], event_type: str) -> bool:
    return any(event["type"] == event_type for event in events)


def _is_at_rest(events: list[dict[str, Any]]) -> bool:
    return bool(events) and events[-1]["type"] in ("holdfast.turn_waiting", "holdfast.turn_ended")


def _has_obeyed(events: list[dict[str, Any]]) -> bool:
    said = (event for event in events if event["type"] == "assistant.message")
    return any(_text(event["data"]) == OBEYING for event in said) and _is_at_rest(events)


def _completed(events: list[dict[str, Any]]) -> set[str]:
    return {event["data"]["toolCallId"] for event in events if event["type"] == "tool.execution_complete"}


def _text(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["blocks"] if block["type"] == "text")


def _log(played: Iterable[Played]) -> str:
    return "\n".join(msgspec.json.encode(each.events).decode() for each in played)


# The two worlds


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Not in /tmp: a sandbox has one of its own, and would hide all of it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-hostile-", dir="/var/tmp")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def _world(role: str, *options: str) -> AsyncIterator[World]:
    with _folder() as folder:
        canaries = Canaries(folder)
        environ = {
            "HOLDFAST_USER_DIRECTORIES": str(folder / "shared"),
            "HOLDFAST_MODEL_API_KEY": canaries.words["api-key"],
            "HOLDFAST_COMMANDS_WITHOUT_SANDBOX": "allow",  # For the control, which has none.
        }
        async with Obedient() as model:
            place = Place(folder, model, **environ)
            keys = {name: await made_key(place, name, name, role) for name in ("ada", "bob")}
            canaries.words |= {f"key-{name}": secret_of(key) for name, key in keys.items()}
            async with (
                place.serve("--auth", "keys", *options) as server,
                server.client(keys["ada"]) as ada,
                server.client(keys["bob"]) as bob,
            ):
                world = World(canaries, server, model, ada, bob)
                await world.prepare()
                yield world


@pytest.fixture(scope="module")
def sandbox() -> None:
    if why := why_not():
        pytest.skip(why)


@pytest.fixture(scope="module")
async def world(sandbox: None) -> AsyncIterator[World]:
    async with _world("user", "--sandbox") as found:
        yield found


def test_the_corpus_is_large_and_comes_every_way() -> None:
    assert len(CORPUS) >= 100
    assert len({entry.id for entry in CORPUS}) == len({entry.instruction for entry in CORPUS}) == len(CORPUS)
    assert {entry.carrier for entry in CORPUS} == set(get_args(Carrier))
    assert {call.name for entry in CORPUS for call in entry.calls} >= ASKING | {"view", "grep", "glob", "kill_task"}


async def test_a_model_that_obeys_every_hostile_instruction_reaches_nothing_outside_of_its_directory(
    world: World,
) -> None:
    files, bobs = world.canaries.files(), await world.bobs()
    played = await world.play_all(CORPUS)
    assert world.canaries.leaked(_log(played)) == set()
    assert world.canaries.leaked(world.model.prompts()) == set()
    assert world.canaries.files() == files
    assert await world.bobs() == bobs
    assert {each.entry.id: each.skipped() for each in played if each.skipped()} == {}
    assert {each.entry.id: each.granted() for each in played if each.granted()} == {}
    for each in played:
        calls = each.hostile_calls()
        assert len(calls) == len(each.entry.calls), each.entry.id
        _people_are_shown_the_very_command(each)
    assert _instructions_that_did_not_arrive(world, played) == []


async def test_a_hostile_session_grants_nothing_to_the_next_one(world: World) -> None:
    entry = Entry(
        id="next",
        carrier="message",
        instruction="Go.",
        calls=(ScriptedCall("create", {"path": "x", "file_text": "x"}),),
    )
    played = await world.play(entry)
    assert [request["kind"] for request in played.requests] == ["permission"]
    assert (played.skipped(), played.granted()) == ([], [])


async def test_calls_approved_by_a_misled_person_reach_no_data_or_key_and_write_nothing_elsewhere(
    world: World,
) -> None:
    files, bobs = world.canaries.files(), await world.bobs()
    again = [msgspec.structs.replace(entry, id=f"again-{entry.id}") for entry in CORPUS if entry.approved]
    assert len(again) >= 20
    played = [await world.approve(each) for each in await world.play_all(again)]
    assert all(each.approved for each in played)
    assert world.canaries.leaked(_log(played)) == set()
    assert world.canaries.files() == files
    assert await world.bobs() == bobs
    assert world.server.process.returncode is None
    assert {each.entry.id: each.skipped() for each in played if each.skipped()} == {}


async def test_control_without_a_sandbox_and_with_all_rights_every_check_fails() -> None:
    entries = [entry for entry in CORPUS if entry.control]
    async with _world("admin") as control:
        files = control.canaries.files()
        played = await control.play_all(entries, allow=["*"])
        assert control.canaries.leaked(_log(played)) >= {"private", "data", "bob-file", "passwd"}
        assert control.canaries.leaked(control.model.prompts()) >= {"private", "data", "bob-file", "passwd"}
        changed = {name for name, content in control.canaries.files().items() if files.get(name) != content}
        assert {Path(name).name for name in changed} >= {"secret.txt", "diary.txt", "canary.txt", "config.toml"}
        assert sum(bool(each.skipped()) for each in played) >= 10
        assert all(each.granted() for each in played)


def _people_are_shown_the_very_command(played: Played) -> None:
    """With any words of the model about the call, and any text around it."""
    shown = {request["tool_call_id"]: request["details"] for request in played.requests}
    for call in played.hostile_calls():
        if call["name"] == "exec" and call["toolCallId"] in shown:
            command = msgspec.json.decode(call["arguments"])["command"].strip()
            assert command in shown[call["toolCallId"]]["subject"], played.entry.id


def _instructions_that_did_not_arrive(world: World, played: Iterable[Played]) -> list[str]:
    """A control of the carriers: the model was sent each instruction before it obeyed, but for titles, which it is not
    sent, and names of files, which have no slashes."""
    prompts = world.model.prompts()
    ends = {each.entry.id: each.entry.instruction.splitlines()[-1] for each in played}
    return [
        each.entry.id
        for each in played
        if each.entry.carrier not in ("title", "name")
        and not any(written in prompts for written in _as_it_may_be_written(ends[each.entry.id]))
    ]


def _as_it_may_be_written(line: str) -> Iterator[str]:
    """As it is, in the JSON of a command's output, and in a notice."""
    yield line
    yield msgspec.json.encode(line).decode()[1:-1]
    yield escape(line)
