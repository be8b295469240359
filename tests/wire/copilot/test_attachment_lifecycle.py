"""Clients that attach, leave, are refused, cancel their requests and die in mid-turn: the next client always finds a
usable session, and no request waits for an answer that never comes."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from tests.wire.copilot.harness import TOKEN, Home, Model, Server, calls, frame, patience, says, tool_names

pytestmark = pytest.mark.anyio

HUGE = 10**30
"""A number that does not fit into 64 bits."""

NOBODY = {"kind": "user-not-available"}
ONCE = {"kind": "approve-once"}
NO = {"kind": "reject"}

COLD = "The turn waits for a client, and the runtime was killed"


class Refused(Exception):
    """The runtime answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.message: str = error["message"]


class Client:
    """A connection that records everything it receives, and can have several requests open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._told: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self.answers: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        """The answer to requests of the runtime."""
        self.reading = asyncio.create_task(self._read())

    def begin(self, method: str, **params: Any) -> "asyncio.Future[dict[str, Any]]":
        """Send a request; the future holds the whole response."""
        return self.begin_all((method, params))[0]

    def begin_all(self, *asked: tuple[str, dict[str, Any]]) -> "list[asyncio.Future[dict[str, Any]]]":
        """Send several requests in one write."""
        numbers = [next(self._ids) for _ in asked]
        for number in numbers:
            self._asked[number] = asyncio.get_running_loop().create_future()
        messages = [{"id": number, "method": m, "params": p} for number, (m, p) in zip(numbers, asked, strict=True)]
        self._write(*messages)
        return [self._asked[number] for number in numbers]

    async def ask(self, method: str, **params: Any) -> Any:
        """The result; raises `Refused`."""
        return await outcome(self.begin(method, **params))

    async def create(self, **params: Any) -> str:
        made = await self.ask("session.create", **{"requestPermission": True, **params})
        return str(made["sessionId"])

    async def resume(self, session: str, **params: Any) -> None:
        await self.ask("session.resume", **{"sessionId": session, "requestPermission": True, **params})

    async def resume_but_cancel(self, session: str, after_seconds: float, **params: Any) -> dict[str, Any]:
        """Resume and cancel the request after a delay; return the response."""
        asked = self.begin("session.resume", sessionId=session, requestPermission=True, **params)
        number = next(number for number, future in self._asked.items() if future is asked)
        await self._writer.drain()
        await asyncio.sleep(after_seconds)
        self._write({"method": "$/cancelRequest", "params": {"id": number}})
        async with patience():
            return await asked

    async def run(self, session: str, prompt: str) -> Any:
        """Send a message and return the outcome of its turn."""
        return await self.ask("session.sendAndWait", sessionId=session, prompt=prompt)

    async def send(self, session: str, prompt: str) -> None:
        await self.ask("session.send", sessionId=session, prompt=prompt)

    async def give(self, session: str, call: dict[str, Any], result: Any) -> bool:
        """Send a tool's result and return whether it was accepted."""
        asked = {"sessionId": session, "requestId": call["requestId"], "result": result}
        return bool((await self.ask("session.tools.handlePendingToolCall", **asked))["success"])

    async def decide(self, session: str, request: dict[str, Any], result: Any) -> bool:
        asked = {"sessionId": session, "requestId": request["requestId"], "result": result}
        return bool((await self.ask("session.permissions.handlePendingPermissionRequest", **asked))["success"])

    async def detach(self, session: str) -> None:
        assert (await self.ask("session.detach", sessionId=session))["success"] is True

    async def history(self, session: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.ask("session.getMessages", sessionId=session))["events"]
        return found

    def events(self, session: str, event_type: str | None = None) -> list[dict[str, Any]]:
        told = [params["event"] for params in self._told if params["sessionId"] == session]
        return [event for event in told if event_type in (None, event["type"])]

    async def until(
        self, session: str, event_type: str, times: int = 1, *, instead_of: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """The data of the event of this type that comes as number `times`. No event of the `instead_of` types may come
        before it."""
        since = len(self._told)
        async with patience():
            while len(found := self.events(session, event_type)) < times:
                assert not self.reading.done(), "the runtime hung up"
                self._news.clear()
                await self._news.wait()
                wrong = [params["event"]["type"] for params in self._told[since:] if params["sessionId"] == session]
                assert not set(wrong) & set(instead_of), wrong
        data: dict[str, Any] = found[times - 1]["data"]
        return data

    def hang_up(self) -> None:
        self._writer.transport.abort()

    def _write(self, *messages: dict[str, Any]) -> None:
        # The other encoders take no number of more than 64 bits as it is.
        self._writer.write(b"".join(frame(msgspec.json.encode({"jsonrpc": "2.0", **m})) for m in messages))

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readuntil(b"\r\n\r\n")
                self._take(msgspec.json.decode(await self._reader.readexactly(int(head.split(b":")[1]))))
        self._news.set()
        for future in self._asked.values():
            if not future.done():
                future.cancel()

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message and "method" in message:
            if self.answers is not None:
                self._write({"id": message["id"], **self.answers(message)})
        elif message.get("method") == "session.event":
            self._told.append(message["params"])
            self._news.set()
        elif "method" not in message:
            self._asked.pop(message["id"]).set_result(message)


async def outcome(asked: "asyncio.Future[dict[str, Any]]") -> Any:
    async with patience():
        response = await asked
    if "error" in response:
        assert "Internal error" not in response["error"]["message"], response
        raise Refused(response["error"])
    return response["result"]


@contextlib.asynccontextmanager
async def clients_of(server: Server, count: int) -> AsyncIterator[list[Client]]:
    """This many authenticated clients."""
    found = []
    try:
        for _ in range(count):
            streams = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 27)
            found.append(Client(*streams))
            await found[-1].ask("connect", token=TOKEN)
        yield found
    finally:
        for client in found:
            client.hang_up()
        await asyncio.gather(*(client.reading for client in found))


@pytest.fixture
async def pair(server: Server) -> AsyncIterator[list[Client]]:
    async with clients_of(server, 2) as found:
        yield found


@pytest.fixture
async def trio(server: Server) -> AsyncIterator[list[Client]]:
    async with clients_of(server, 3) as found:
        yield found


def tool(name: str, **more: Any) -> dict[str, Any]:
    plain = {"type": "object", "properties": {}}
    return {"name": name, "description": "Does it", "parameters": plain, "skipPermission": True, **more}


def a_waiting_tool(model: Model, prompt: str) -> None:
    model.on(prompt, calls("ta"), says("Got {last_tool_result}."))


async def killed_while_it_waits(home: Home, **options: Any) -> tuple[str, dict[str, Any]]:
    """A session whose tool call waits for a client and whose runtime is dead, and the call's request."""
    a_waiting_tool(home.model, COLD)
    async with home.serve() as server, clients_of(server, 1) as (client,):
        session = await client.create(tools=[tool("ta")], **options)
        await client.send(session, COLD)
        call = await client.until(session, "external_tool.requested")
        await server.kill()
    return session, call


def types_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


# What a client may not bring


async def test_tool_schema_with_a_number_beyond_64_bits_is_refused_and_the_session_goes_on(
    pair: list[Client], model: Model
) -> None:
    model.on("Count without end", says("Counted."))
    one, two = pair
    huge = tool("counter", parameters={"type": "object", "properties": {"n": {"type": "integer", "maximum": HUGE}}})
    with pytest.raises(Refused, match="counter"):
        await one.create(tools=[huge])
    session = await one.create()
    with pytest.raises(Refused, match="counter"):
        await one.resume(session, tools=[huge])
    for number in range(210):  # More events than between two snapshots.
        await one.ask("session.name.set", sessionId=session, name=f"Name {number}")
    for _ in range(2):
        assert (await one.run(session, "Count without end"))["aborted"] is False
    await one.detach(session)
    await two.resume(session)
    assert (await two.run(session, "Count without end"))["response"]["data"]["content"] == "Counted."


@pytest.mark.parametrize(
    "name", ["*", "shell(*)", "write(/*)", "", "a\0b", "a b", "x" * 500], ids=lambda name: repr(name[:9])
)
async def test_tool_name_that_models_or_rules_can_not_express_is_refused(pair: list[Client], name: str) -> None:
    one, _ = pair
    with pytest.raises(Refused, match="name"):
        await one.create(tools=[tool(name)])
    session = await one.create()
    with pytest.raises(Refused, match="name"):
        await one.resume(session, tools=[tool(name)])
    await one.resume(session, tools=[tool("A_name-with_64_characters_is_fine".ljust(64, "x"))])


# Refused and cancelled


async def test_refused_resume_leaves_pending_requests_to_the_next_client(own_home: Home) -> None:
    session, call = await killed_while_it_waits(own_home)
    async with own_home.serve() as server, clients_of(server, 2) as (refused, next_one):
        with pytest.raises(Refused, match="nonexistent"):
            await refused.resume(session, tools=[tool("ta")], model="nonexistent")
        await next_one.resume(session, tools=[tool("ta")], continuePendingWork=True)
        again = await next_one.until(session, "external_tool.requested")
        assert again["requestId"] == call["requestId"]
        assert types_of(await next_one.history(session)).count("session.resume") == 1
        assert await next_one.give(session, call, "it") is True
        await next_one.until(session, "session.idle")
        said = [event["data"]["content"] for event in next_one.events(session, "assistant.message")]
        assert said[-1] == "Got it."


@pytest.mark.parametrize(
    "wrong",
    [
        {"systemMessage": {"mode": "append", "content": "x" * 300_000}},
        {"model": "nonexistent"},
        {"workingDirectory": "/no/such/directory"},
        {"clientName": "x" * 100_000},
        {"reasoningEffort": "x" * 100_000},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_refused_resume_leaves_no_attachment_and_no_event(trio: list[Client], wrong: dict[str, Any]) -> None:
    one, refused, other = trio
    session = await one.create()
    before = types_of(await one.history(session))
    with pytest.raises(Refused):
        await refused.resume(session, tools=[tool("ta")], **wrong)
    assert types_of(await one.history(session)) == before
    with pytest.raises(Refused, match="Session not found"):
        await refused.send(session, "Am I attached?")
    await other.resume(session, tools=[tool("ta")])


@pytest.mark.parametrize(
    "wrong",
    [
        {"tools": [tool("tb")]},
        {"tools": [tool("tc")], "model": "nonexistent"},
        {"tools": [tool("tc")], "systemMessage": {"content": "x" * 300_000}},
    ],
    ids=["clash", "model", "system message"],
)
async def test_a_client_whose_second_resume_is_refused_stays_attached_as_it_was(
    trio: list[Client], model: Model, wrong: dict[str, Any]
) -> None:
    a_waiting_tool(model, "Still mine?")
    one, two, other = trio
    session = await one.create(tools=[tool("ta")])
    await two.resume(session, tools=[tool("tb")])
    with pytest.raises(Refused):
        await one.resume(session, **wrong)
    with pytest.raises(Refused, match="clash: ta"):
        await other.resume(session, tools=[tool("ta")])
    await one.send(session, "Still mine?")
    call = await one.until(session, "external_tool.requested")
    assert await one.give(session, call, "it") is True
    await one.until(session, "session.idle")
    await other.resume(session, tools=[tool("tc")])


async def test_a_cancelled_resume_leaves_a_session_that_the_next_client_can_use(
    pair: list[Client], model: Model
) -> None:
    model.on("Use it after all", says("Used."))
    one, two = pair
    session = await one.create()
    await one.run(session, "Use it after all")
    await one.detach(session)
    cancelled = 0
    for attempt in range(20):
        response = await one.resume_but_cancel(session, 0.0003 * attempt, tools=[tool("ta")])
        if "result" in response:
            await one.detach(session)
        cancelled += "error" in response
        await two.resume(session, tools=[tool("ta")])
        assert (await two.run(session, "Use it after all"))["response"]["data"]["content"] == "Used."
        await two.detach(session)
    assert cancelled, "each came too late to cancel anything"


async def test_cancelled_resume_beside_another_client_leaves_no_orphaned_tool(pair: list[Client], model: Model) -> None:
    model.on("What can be used?", says("This."))
    one, two = pair
    session = await two.create(tools=[tool("tb")])
    for attempt in range(20):
        response = await one.resume_but_cancel(session, 0.0003 * attempt, tools=[tool("ta")])
        if "result" in response:
            await one.detach(session)
        await two.run(session, "What can be used?")
        offered = tool_names(model.last_call_about("What can be used?"))
        assert "tb" in offered
        assert "ta" not in offered


# Whoever waits is answered


async def test_send_and_wait_is_answered_when_another_client_deletes_the_session(
    pair: list[Client], model: Model
) -> None:
    a_waiting_tool(model, "Wait until it is deleted")
    one, two = pair
    session = await one.create(tools=[tool("ta")])
    waiting = one.begin("session.sendAndWait", sessionId=session, prompt="Wait until it is deleted")
    await one.until(session, "external_tool.requested")
    assert (await two.ask("session.delete", sessionId=session))["success"] is True
    with pytest.raises(Refused, match="closed"):
        await outcome(waiting)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
async def test_send_and_wait_is_answered_when_its_client_detaches(
    pair: list[Client], model: Model, others: int
) -> None:
    a_waiting_tool(model, "Wait until I leave")
    one, two = pair
    session = await one.create(tools=[tool("ta")])
    if others:
        await two.resume(session)
    waiting = one.begin("session.sendAndWait", sessionId=session, prompt="Wait until I leave")
    call = await one.until(session, "external_tool.requested")
    await one.detach(session)
    with pytest.raises(Refused, match="closed"):
        await outcome(waiting)
    # The turn itself goes on.
    await two.resume(session, tools=[tool("ta")], continuePendingWork=True)
    assert await two.give(session, call, "it") is True
    await two.until(session, "session.idle")


async def test_send_and_wait_is_answered_after_a_resume_in_mid_turn(pair: list[Client], model: Model) -> None:
    a_waiting_tool(model, "Wait while I come back")
    one, _ = pair
    session = await one.create(tools=[tool("ta")])
    waiting = one.begin("session.sendAndWait", sessionId=session, prompt="Wait while I come back")
    call = await one.until(session, "external_tool.requested")
    await one.resume(session, tools=[tool("ta")], continuePendingWork=True)
    assert await one.give(session, call, "it") is True
    await one.until(session, "session.idle")
    assert (await outcome(waiting))["response"]["data"]["content"] == "Got it."


@pytest.mark.parametrize("stop", ["session.abort", "session.suspend"])
async def test_stopping_a_turn_and_detaching_at_once_are_both_answered(
    pair: list[Client], model: Model, stop: str
) -> None:
    prompt = f"Be stopped by {stop}"
    model.on(prompt, calls("bash", command="trap '' TERM; sleep 30"), says("Never said."))
    model.on("Go on after that", says("Gone on."))
    one, two = pair
    session = await one.create()
    await one.ask("session.permissions.setApproveAll", sessionId=session, enabled=True)
    await one.send(session, prompt)
    await one.until(session, "tool.execution_start")
    about = {"sessionId": session}
    stopped, detached = one.begin_all((stop, about), ("session.detach", about))
    assert (await outcome(detached))["success"] is True
    await outcome(stopped)
    await two.resume(session)
    assert (await two.run(session, "Go on after that"))["response"]["data"]["content"] == "Gone on."


# What one client approved


@pytest.mark.parametrize("kind", ["approve-for-session", "approve-permanently"])
async def test_approving_a_client_tool_named_bash_does_not_approve_the_built_in_one(own_home: Home, kind: str) -> None:
    model = own_home.model
    model.on("Use theirs", calls("bash", command="x"), says("Done."))
    model.on("Use ours", calls("bash", command="touch unasked", description="x"), says("Done."))
    async with own_home.serve() as server, clients_of(server, 2) as (one, two):
        session = await one.create(tools=[tool("bash", skipPermission=False, overridesBuiltInTool=True)])
        await one.send(session, "Use theirs")
        assert await one.decide(session, await one.until(session, "permission.requested"), {"kind": kind}) is True
        assert await one.give(session, await one.until(session, "external_tool.requested"), "done") is True
        await one.until(session, "session.idle")
        await one.detach(session)
        await two.resume(session)
        for found in (session, await two.create()):
            await is_asked_and_denies(two, found, "Use ours")
        assert not (own_home.work / "unasked").exists()


async def is_asked_and_denies(client: Client, session: str, prompt: str) -> None:
    """Run a turn, check that it asks for permission before anything else happens, and deny it."""
    before = len(client.events(session, "permission.requested")), len(client.events(session, "session.idle"))
    await client.send(session, prompt)
    unasked = ("external_tool.requested", "session.idle")
    asked = await client.until(session, "permission.requested", before[0] + 1, instead_of=unasked)
    assert await client.decide(session, asked, NO) is True
    await client.until(session, "session.idle", before[1] + 1)


async def test_approving_every_tool_by_a_star_approves_one_tool_at_most(pair: list[Client], model: Model) -> None:
    model.on("Use the first", calls("first_tool"), says("Done."))
    model.on("Use the second", calls("second_tool"), says("Done."))
    model.on("Use our shell", calls("bash", command="touch by-a-star", description="x"), says("Done."))
    one, _ = pair
    session = await one.create(tools=[tool(name, skipPermission=False) for name in ("first_tool", "second_tool")])
    await one.send(session, "Use the first")
    asked = await one.until(session, "permission.requested")
    approval = {"kind": "custom-tool", "toolName": "*"}
    try:
        await one.decide(session, asked, {"kind": "approve-for-session", "approval": approval})
    except Refused:
        await one.decide(session, asked, ONCE)
    assert await one.give(session, await one.until(session, "external_tool.requested"), "done") is True
    await one.until(session, "session.idle")
    for prompt in ("Use the second", "Use our shell"):
        await is_asked_and_denies(one, session, prompt)


async def test_approval_for_a_location_holds_there_and_nowhere_else(own_home: Home) -> None:
    here, there = own_home.work / "here", own_home.work / "there"
    here.mkdir()
    there.mkdir()
    for name in ("first", "second", "third", "fourth"):
        own_home.model.on(f"Write the {name}", calls("create", path=name, file_text="x"), says("Done."))
    async with own_home.serve() as server, clients_of(server, 1) as (one,):
        session = await one.create(workingDirectory=str(here))
        await one.send(session, "Write the first")
        asked = await one.until(session, "permission.requested")
        approved = {"kind": "approve-for-location", "locationKey": str(here), "approval": {"kind": "write"}}
        assert await one.decide(session, asked, approved) is True
        await one.until(session, "session.idle")
        assert (await one.run(session, "Write the fourth"))["aborted"] is False
        assert len(one.events(session, "permission.requested")) == 1
        moved = await one.create(workingDirectory=str(here))
        await one.ask("session.metadata.setWorkingDirectory", sessionId=moved, workingDirectory=str(there))
        await is_asked_and_denies(one, moved, "Write the second")
        assert not (there / "second").exists()
        another = await one.create(workingDirectory=str(here))
        assert (await one.run(another, "Write the third"))["aborted"] is False
        assert one.events(another, "permission.requested") == []
        assert (here / "third").exists()


@pytest.mark.parametrize("kind", [[], {}, None, 5], ids=repr)
async def test_unknown_decision_or_result_kind_is_refused_and_changes_nothing(
    pair: list[Client], model: Model, kind: Any
) -> None:
    model.on("Decide on this", calls("asking_tool"), says("Got {last_tool_result}."))
    one, _ = pair
    session = await one.create(tools=[tool("asking_tool", skipPermission=False)])
    await one.send(session, "Decide on this")
    asked = await one.until(session, "permission.requested")
    with pytest.raises(Refused, match="no decision"):
        await one.decide(session, asked, {"kind": kind})
    assert await one.decide(session, asked, ONCE) is True
    call = await one.until(session, "external_tool.requested")
    if kind is not None:
        with pytest.raises(Refused, match="is no resultType"):
            await one.give(session, call, {"textResultForLlm": "x", "resultType": kind})
    assert await one.give(session, call, {"textResultForLlm": "it", "resultType": "success"}) is True
    await one.until(session, "session.idle")


# What one client brought stays when another comes


async def test_a_sessions_own_token_stays_when_another_client_resumes_without_one(own_home: Home) -> None:
    model = own_home.model
    model.on("Whose token", says("Yours."))
    environ = {"COPILOT_SDK_AUTH_TOKEN": "the-token-of-the-runtime"}
    async with own_home.serve(**environ) as server, clients_of(server, 2) as (one, two):
        session = await one.create(gitHubToken="the-token-of-the-session")
        await one.run(session, "Whose token first")
        await two.resume(session)
        await one.run(session, "Whose token second")
        await two.create(sessionId=session)
        await two.run(session, "Whose token third")
    for word in ("first", "second", "third"):
        (headers,) = model.headers_about(f"Whose token {word}")
        assert headers["Authorization"] == "Bearer the-token-of-the-session", word


async def test_a_providers_key_stays_when_a_client_creates_the_session_again_without_one(
    pair: list[Client], model: Model
) -> None:
    model.on("Whose key", says("Yours."))
    one, two = pair
    session = await one.create(provider={"baseUrl": model.url, "apiKey": "the-key-of-the-provider"}, model="scripted")
    await one.run(session, "Whose key first")
    await two.create(sessionId=session)
    assert (await one.run(session, "Whose key second"))["aborted"] is False
    for word in ("first", "second"):
        (headers,) = model.headers_about(f"Whose key {word}")
        assert headers["Authorization"] == "Bearer the-key-of-the-provider", word


# What is pending


async def test_answered_call_is_not_delivered_to_the_next_client(own_home: Home) -> None:
    own = {"provider": {"baseUrl": own_home.model.url, "apiKey": "a-key"}, "model": "scripted"}
    session, call = await killed_while_it_waits(own_home, **own)
    async with own_home.serve() as server, clients_of(server, 2) as (keyless, next_one):
        # No process has the key: the answer is accepted, and no worker can run the session.
        await keyless.resume(session, continuePendingWork=True)
        assert await keyless.give(session, call, "it") is True
        await keyless.detach(session)
        await next_one.resume(session, tools=[tool("ta")], continuePendingWork=True, **own)
        await next_one.until(session, "session.idle")
        assert next_one.events(session, "external_tool.requested") == []
        assert next_one.events(session, "assistant.message")[-1]["data"]["content"] == "Got it."


async def test_creating_an_existing_session_attaches_it_to_this_process(own_home: Home) -> None:
    session, call = await killed_while_it_waits(own_home)
    async with own_home.serve() as server, clients_of(server, 2) as (one, two):
        await one.create(sessionId=session, tools=[tool("ta")])
        await one.detach(session)
        await two.resume(session, tools=[tool("ta")], continuePendingWork=False)
        assert (await two.until(session, "session.resume"))["sessionWasActive"] is True
        assert await two.give(session, call, "it") is True
        await two.until(session, "session.idle")
        assert two.events(session, "assistant.message")[-1]["data"]["content"] == "Got it."


async def test_call_approved_after_its_client_left_waits_for_the_next_client(pair: list[Client], model: Model) -> None:
    one, two = pair
    session = await approved_after_its_client_left(one, two, model)
    assert two.events(session, "assistant.message")[-1]["data"]["content"] == "Got it."


async def test_tool_of_a_client_that_left_is_no_longer_offered_once_its_call_is_done(
    pair: list[Client], model: Model
) -> None:
    model.on("What is left now?", says("Nothing."))
    one, two = pair
    session = await approved_after_its_client_left(one, two, model)
    await two.run(session, "What is left now?")
    assert "ta" not in tool_names(model.last_call_about("What is left now?"))


async def approved_after_its_client_left(one: Client, two: Client, model: Model) -> str:
    """A session whose first client left in mid-turn, and whose second client did its work."""
    a_waiting_tool(model, "Approve it later")
    session = await one.create(tools=[tool("ta", skipPermission=False)])
    await two.resume(session)
    await one.send(session, "Approve it later")
    asked = await two.until(session, "permission.requested")
    await one.detach(session)
    assert await two.decide(session, asked, ONCE) is True
    call = await two.until(session, "external_tool.requested")
    assert await two.give(session, call, "it") is True
    await two.until(session, "session.idle")
    return session


async def test_permission_is_denied_when_the_runtime_of_the_last_deciding_client_is_killed(own_home: Home) -> None:
    own_home.model.on("Who decides?", calls("create", path="undecided", file_text="x"), says("Nobody."))
    async with (
        own_home.serve() as first,
        own_home.serve() as second,
        clients_of(first, 1) as (one,),
        clients_of(second, 1) as (other,),
    ):
        session = await one.create()
        await other.resume(session)
        await one.send(session, "Who decides?")
        asked = await one.until(session, "permission.requested")
        assert await one.decide(session, asked, NOBODY) is True
        assert one.events(session, "permission.completed") == []
        await second.kill()
        await one.until(session, "permission.completed")
        await one.until(session, "session.idle")
    assert not (own_home.work / "undecided").exists()


@pytest.mark.parametrize(
    "answer", [{"error": {"code": -32603, "message": "Nobody there"}}, {"result": {"foo": 1}}], ids=["error", "garbage"]
)
@pytest.mark.parametrize("count", [1, 2])
async def test_a_question_that_no_client_answers_properly_fails_and_the_turn_ends(
    pair: list[Client], model: Model, answer: dict[str, Any], count: int
) -> None:
    model.on("Ask somebody", calls("ask_user", question="Why?", choices=["a"]), says("Nobody said."))
    one, two = pair
    session = await one.create(requestUserInput=True)
    if count == 2:
        await two.resume(session, requestUserInput=True)
    for each in pair:
        each.answers = lambda asked: answer
    await one.send(session, "Ask somebody")
    completed = await one.until(session, "tool.execution_complete")
    assert completed["success"] is False
    await one.until(session, "session.idle")


# What the events say of each other


async def test_events_after_rewinds_refer_to_the_readable_history(trio: list[Client], model: Model) -> None:
    model.on("One after the other", says("Said."))
    one, two, three = trio
    session = await one.create()
    for number in range(3):
        await one.run(session, f"One after the other {number}")
    for number in range(2):
        await rewind_to_third(one, session)
        await one.run(session, f"One after the other again {number}")
        check_parents(one.events(session), await one.history(session))
    await rewind_to_third(one, session)
    await two.resume(session)
    await two.until(session, "session.resume")
    await one.detach(session)
    await two.detach(session)
    await three.resume(session)
    await three.until(session, "session.resume")
    await three.run(session, "One after the other at last")
    check_parents(three.events(session), await three.history(session))


async def rewind_to_third(client: Client, session: str) -> None:
    said = [event for event in await client.history(session) if event["type"] == "user.message"]
    await client.ask("session.history.truncate", sessionId=session, eventId=said[2]["id"])


def check_parents(told: list[dict[str, Any]], history: list[dict[str, Any]]) -> None:
    """The history is a chain of parents, and the live events have the same parents."""
    assert [event["parentId"] for event in history] == [None, *(event["id"] for event in history[:-1])]
    parents = {event["id"]: event["parentId"] for event in history}
    compared = [event for event in told if event["id"] in parents and not event.get("ephemeral")]
    assert compared
    for event in compared:
        assert event["parentId"] == parents[event["id"]], event["type"]
