"""Background commands: listing, reading, promoting and cancelling them, and the news of their end."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from copilot import CopilotClient, CopilotSession
from copilot._jsonrpc import JsonRpcError
from copilot.generated.rpc import (
    TaskExecutionMode,
    TasksCancelRequest,
    TasksGetProgressRequest,
    TaskShellInfo,
    TaskShellInfoAttachmentMode,
    TasksPromoteToBackgroundRequest,
    TasksReadOutputRequest,
    TasksReadOutputResult,
    TasksRemoveRequest,
    TaskStatus,
)
from copilot.session_events import (
    AssistantMessageData,
    SessionBackgroundTasksChangedData,
    SessionEvent,
    SystemNotificationData,
    SystemNotificationShellCompleted,
    SystemNotificationUnclassified,
    ToolExecutionCompleteData,
    UserMessageData,
    session_event_from_dict,
)

from holdfast.events.event import Event
from holdfast.events.ids import EventId, Position, TaskId
from holdfast.events.task import NoticeKind, TaskNotice, TaskNotified
from holdfast.server.copilot.projection import CopilotProjection
from tests.wire.copilot.harness import (
    Heard,
    Home,
    Model,
    Pipe,
    Server,
    approving,
    ask,
    calls,
    connected,
    final_answer,
    history,
    is_gone,
    patience,
    reply_to,
    says,
    tool_results,
)

pytestmark = pytest.mark.anyio

MakePipe = Callable[[str], Pipe]

WAIT_MS = 30_000

SYNC = {"initial_wait": 300}
"""Arguments of a sync command that a turn waits for as long as any test runs."""


class Work:
    """A command that counts its runs, reports its start, and goes on when the test allows it."""

    def __init__(
        self, folder: Path, pipe: MakePipe, name: str = "work", *, says: str = "echo begun", then: str = "echo ended"
    ) -> None:
        self._begun, self._go_on = pipe(f"{name}.begun"), pipe(f"{name}.go-on")
        self._count = folder / f"{name}.count"
        self.command = (
            f"exec 9< {self._go_on.path}; echo ran >> {self._count}; {says}; "
            f"echo $$ > {self._begun.path}; read word <&9; {then}"
        )
        self.pid = 0

    async def begun(self) -> None:
        self.pid = int(await self._begun.line())

    def go_on(self) -> None:
        self._go_on.write("now")

    @property
    def times(self) -> int:
        return len(self._count.read_text(encoding="utf-8").splitlines())

    async def is_gone(self) -> bool:
        return await asyncio.to_thread(is_gone, self.pid)


@pytest.fixture
def work(tmp_path: Path, pipe: MakePipe) -> Work:
    """A command that does not outlive its test: it goes on when its pipes are closed at the latest."""
    return Work(tmp_path, pipe)


async def listed(session: CopilotSession) -> list[TaskShellInfo]:
    found = (await session.rpc.tasks.list()).tasks
    assert all(isinstance(one, TaskShellInfo) for one in found)
    return [one for one in found if isinstance(one, TaskShellInfo)]


async def the_task(session: CopilotSession) -> TaskShellInfo:
    (found,) = await listed(session)
    return found


async def until_status(session: CopilotSession, heard: Heard, status: TaskStatus) -> TaskShellInfo:
    """Wait until the only task of a session has this status. Every change of it is announced to clients."""

    async def is_so() -> TaskShellInfo | None:
        found = await the_task(session)
        return found if found.status is status else None

    return await heard.until_so(is_so)


async def read(session: CopilotSession, task: TaskShellInfo, cursor: str | None = None) -> TasksReadOutputResult:
    asked = TasksReadOutputRequest(id=task.id, cursor=cursor, wait_ms=WAIT_MS)
    return await session.rpc.tasks.read_output(asked, timeout=60)


async def read_until(
    session: CopilotSession, task: TaskShellInfo, is_enough: Callable[[str, TasksReadOutputResult], bool]
) -> tuple[str, TasksReadOutputResult]:
    """The output from its beginning, in as many reads as it takes."""
    text, cursor = "", None
    async with patience():
        while True:
            found = await read(session, task, cursor)
            text, cursor = text + found.text, found.cursor
            if is_enough(text, found):
                return text, found


def of_task(task_id: str) -> Callable[[SystemNotificationData], bool]:
    return lambda data: isinstance(data.kind, SystemNotificationShellCompleted) and data.kind.shell_id == task_id


async def started(session: CopilotSession, model: Model, work: Work, words: str, **arguments: str) -> TaskShellInfo:
    """Start a command in the background, in a session that is idle again."""
    model.on(words, calls("bash", command=work.command, mode="async", **arguments), says("It runs."))
    assert await reply_to(session, words) == "It runs."
    await work.begun()
    return await the_task(session)


# Looking


async def test_background_command_is_listed_with_all_its_fields(
    client: CopilotClient, model: Model, work: Work
) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    task = await started(session, model, work, "Start it and look", description="Waits a while")
    assert heard.all(SessionBackgroundTasksChangedData)
    assert (task.status, task.execution_mode) == (TaskStatus.RUNNING, TaskExecutionMode.BACKGROUND)
    assert task.attachment_mode is TaskShellInfoAttachmentMode.DETACHED
    assert (task.command, task.description) == (work.command, "Waits a while")
    assert task.can_promote_to_background is False
    assert task.completed_at is None
    assert task.pid == work.pid
    await read_until(session, task, lambda text, _: text == "begun\n")
    assert task.log_path is not None
    assert await asyncio.to_thread(Path(task.log_path).read_bytes) == b"begun\n"
    progress = (await session.rpc.tasks.get_progress(TasksGetProgressRequest(id=task.id))).progress
    assert progress is not None
    assert (progress.recent_output, progress.pid) == ("begun\n", work.pid)
    work.go_on()
    await session.rpc.tasks.wait_for_pending(timeout=60)
    ended = await the_task(session)
    assert (ended.id, ended.status, ended.pid) == (task.id, TaskStatus.COMPLETED, None)
    assert ended.completed_at is not None
    assert ended.completed_at >= ended.started_at
    progress = (await session.rpc.tasks.get_progress(TasksGetProgressRequest(id=task.id))).progress
    assert progress is not None
    assert (progress.recent_output, progress.pid) == ("begun\nended\n", None)


async def test_a_session_with_a_task_has_active_work_and_is_idle(
    client: CopilotClient, model: Model, work: Work
) -> None:
    session = await client.create_session(**approving())
    await started(session, model, work, "Start it and be idle")
    assert await ask(session, "session.metadata.isProcessing") == {"processing": False}
    assert await ask(session, "session.metadata.activity") == {"hasActiveWork": True, "abortable": False}
    work.go_on()
    await session.rpc.tasks.wait_for_pending(timeout=60)
    assert await ask(session, "session.metadata.activity") == {"hasActiveWork": False, "abortable": False}


async def test_missing_task_is_answered_as_missing(client: CopilotClient, model: Model, work: Work) -> None:
    other = await client.create_session(**approving())
    theirs = await started(other, model, work, "Start it in another session")
    session = await client.create_session(**approving())
    tasks = session.rpc.tasks
    assert await listed(session) == []
    for unknown in ("missing-task", theirs.id):
        assert (await tasks.get_progress(TasksGetProgressRequest(id=unknown))).progress is None
        assert not (await tasks.cancel(TasksCancelRequest(id=unknown))).cancelled
        assert not (await tasks.remove(TasksRemoveRequest(id=unknown))).removed
        assert not (await tasks.promote_to_background(TasksPromoteToBackgroundRequest(id=unknown))).promoted
        with pytest.raises(JsonRpcError, match="not found in this session"):
            await tasks.read_output(TasksReadOutputRequest(id=unknown))
    assert (await tasks.get_current_promotable()).task is None
    assert (await tasks.promote_current_to_background()).task is None
    assert (await ask(session, "session.tasks.sendMessage", id="missing-task", message="hello"))["sent"] is False
    await tasks.refresh()
    await tasks.wait_for_pending(timeout=60)
    assert (await the_task(other)).status is TaskStatus.RUNNING
    work.go_on()


# What it wrote


async def test_output_is_read_in_pieces_until_the_exit(
    client: CopilotClient, model: Model, tmp_path: Path, pipe: MakePipe
) -> None:
    work = Work(tmp_path, pipe, then="echo oh no >&2; exit 3")
    session = await client.create_session(**approving())
    task = await started(session, model, work, "Start it and read")
    first, so_far = await read_until(session, task, lambda text, _: bool(text))
    assert (first, so_far.exit) == ("begun\n", None)
    at_the_end = await session.rpc.tasks.read_output(TasksReadOutputRequest(id=task.id, cursor=so_far.cursor))
    assert (at_the_end.text, at_the_end.exit, at_the_end.cursor) == ("", None, so_far.cursor)
    waiting = asyncio.create_task(read(session, task, so_far.cursor))
    work.go_on()
    async with patience():
        assert (await waiting).text == "oh no\n"
    whole, last = await read_until(session, task, lambda _, found: found.exit is not None)
    assert whole == "begun\noh no\n"
    for found in (last, await read(session, task, last.cursor)):
        assert found.exit is not None
        assert (found.exit.status, found.exit.exit_code) == (TaskStatus.FAILED, 3)
    assert (await read(session, task, last.cursor)).text == ""


async def test_a_long_output_is_read_in_pages_of_whole_lines(client: CopilotClient, model: Model) -> None:
    session = await client.create_session(**approving())
    model.on("Start what writes much", calls("bash", command="seq 1 40000", mode="async"), says("It runs."))
    await reply_to(session, "Start what writes much")
    await session.rpc.tasks.wait_for_pending(timeout=60)
    task = await the_task(session)
    pages: list[str] = []

    def keep(_: str, found: TasksReadOutputResult) -> bool:
        pages.append(found.text)
        return found.exit is not None

    text, _ = await read_until(session, task, keep)
    assert text == "".join(f"{number}\n" for number in range(1, 40_001))
    assert len(pages) > 3
    assert all(len(page.encode()) <= 64 * 1024 and page.endswith("\n") for page in pages)


async def test_characters_are_never_split_and_invalid_bytes_are_replaced(client: CopilotClient, model: Model) -> None:
    session = await client.create_session(**approving())
    command = "printf 'xy'; for i in $(seq 30000); do printf '€€'; done; printf '\\377'"
    model.on("Start what writes one long line", calls("bash", command=command, mode="async"), says("It runs."))
    await reply_to(session, "Start what writes one long line")
    await session.rpc.tasks.wait_for_pending(timeout=60)
    text, _ = await read_until(session, await the_task(session), lambda _, found: found.exit is not None)
    assert text == "xy" + "€" * 60_000 + "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("cursor", ["nonsense", "another:5", "{id}:-1", "{id}:999999999", "{id}:" + "9" * 30])
async def test_cursor_of_another_task_is_refused(client: CopilotClient, model: Model, work: Work, cursor: str) -> None:
    session = await client.create_session(**approving())
    task = await started(session, model, work, "Start it for a bad cursor")
    with pytest.raises(JsonRpcError, match="cursor"):
        await read(session, task, cursor.format(id=task.id))
    work.go_on()


async def test_known_secret_is_redacted_in_the_output(own_home: Home, work: Work) -> None:
    own_home.model.on(
        "Print it", calls("bash", command="printf 'it is %s\\n' sesame-open-4711", mode="async"), says("It runs.")
    )
    async with (
        own_home.serve(HOLDFAST_MODEL_API_KEY="sesame-open-4711") as server,
        connected(server.client()) as client,
    ):
        session = await client.create_session(**approving())
        await reply_to(session, "Print it")
        task = await the_task(session)
        text, _ = await read_until(session, task, lambda _, found: found.exit is not None)
        assert text == "it is [redacted]\n"
        assert "sesame" not in task.command


# News of its end


async def test_the_end_of_a_command_wakes_an_idle_session_and_every_client_sees_it(
    client: CopilotClient, another: CopilotClient, model: Model, work: Work
) -> None:
    model.on("wakes-everybody", says("Good to know."))
    heard, elsewhere = Heard(), Heard()
    session = await client.create_session(**approving(on_event=heard))
    task = await started(session, model, work, "Start it and wait", description="wakes-everybody")
    same = await another.resume_session(session.session_id, on_event=elsewhere)
    idle_before = len(heard.events)
    held = model.hold("wakes-everybody")
    work.go_on()
    await held.until_reached()
    assert await ask(same, "session.metadata.isProcessing") == {"processing": True}
    assert await ask(same, "session.metadata.activity") == {"hasActiveWork": True, "abortable": True}
    held.release()
    await elsewhere.until_idle()
    await heard.until_idle(times=2)
    for told in (heard.events[idle_before:], elsewhere.events):
        check_woken_turn(told, task.id)
    assert len(await history(session, UserMessageData)) == 1
    (noted,) = await history(same, SystemNotificationData)
    assert of_task(task.id)(noted)
    model.on("Are you there?", says("I am."))
    assert await reply_to(same, "Are you there?") == "I am."


def check_woken_turn(told: list[SessionEvent], task_id: str) -> None:
    """Check the events from the news to idle, in order and without a user message."""
    types = [event.raw_type or event.type.value for event in told]
    order = [
        "session.background_tasks_changed",
        "system.notification",
        "assistant.turn_start",
        "assistant.message",
        "assistant.turn_end",
        "session.idle",
    ]
    places = [types.index(name) for name in order]
    assert places == sorted(places), types
    assert "user.message" not in types
    by_type = {name: told[place] for name, place in zip(order, places, strict=True)}
    assert by_type["session.background_tasks_changed"].ephemeral is True
    noted = by_type["system.notification"]
    assert not noted.ephemeral
    assert isinstance(noted.data, SystemNotificationData)
    assert isinstance(noted.data.kind, SystemNotificationShellCompleted)
    assert noted.data.kind.shell_id == task_id
    assert noted.data.kind.exit_code == 0
    assert noted.data.kind.description == "wakes-everybody"
    assert "<task-notification>" in noted.data.content
    answered = by_type["assistant.message"].data
    assert isinstance(answered, AssistantMessageData)
    assert answered.content == "Good to know."
    assert answered.originating_message_id is None


async def test_message_sent_during_a_woken_turn_gets_its_own_answer(
    client: CopilotClient, model: Model, work: Work
) -> None:
    model.on("runs-beside", says("That is over."))
    model.on("And what else?", says("Nothing else."))
    session = await client.create_session(**approving())
    await started(session, model, work, "Start it and ask on", description="runs-beside")
    held = model.hold("runs-beside")
    work.go_on()
    await held.until_reached()
    answer = asyncio.create_task(reply_to(session, "And what else?"))
    heard = Heard(session)

    async def is_queued() -> bool | None:
        return (await ask(session, "session.queue.hasPending"))["hasPending"] or None

    await heard.until_so(is_queued)
    held.release()
    assert await answer == "Nothing else."
    said = [data.content for data in await history(session, AssistantMessageData)]
    assert said == ["", "It runs.", "That is over.", "Nothing else."]


async def test_news_during_a_turn_reaches_its_next_step(client: CopilotClient, model: Model, work: Work) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    task = await started(session, model, work, "Start it beside the rest", description="ends-meanwhile")
    model.on("Do the rest now", calls("view", path="."), says("All done."))
    held = model.hold("Do the rest now")
    sent = asyncio.create_task(reply_to(session, "Do the rest now"))
    await held.until_reached()
    work.go_on()
    await heard.until(
        SessionBackgroundTasksChangedData, times=2
    )  # Clients are notified before the model gets the news.
    assert (await the_task(session)).status is TaskStatus.COMPLETED
    assert await history(session, SystemNotificationData) == []
    held.release()
    async with patience():
        await sent
    (noted,) = await history(session, SystemNotificationData)
    assert of_task(task.id)(noted)
    assert len(model.calls_about("ends-meanwhile")) == 1
    assert await ask(session, "session.metadata.isProcessing") == {"processing": False}


async def test_task_killed_by_the_model_is_announced_to_clients_and_not_to_the_model(
    client: CopilotClient, model: Model, work: Work
) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await started(session, model, work, "Start it to end it", shellId="mine")
    model.on("Now end it", calls("stop_bash", shellId="mine"), says("Ended."))
    assert await reply_to(session, "Now end it") == "Ended."
    ended = await until_status(session, heard, TaskStatus.CANCELLED)
    assert await work.is_gone()
    assert ended.completed_at is not None
    assert await history(session, SystemNotificationData) == []
    assert await ask(session, "session.metadata.isProcessing") == {"processing": False}


async def test_stalled_command_is_announced_and_so_is_its_end(own_home: Home, tmp_path: Path, pipe: MakePipe) -> None:
    asks = Work(tmp_path, pipe, says="printf 'Continue? '")
    model, heard = own_home.model, Heard()
    model.on("asks-for-more", says("Noted."))
    begin = calls("bash", command=asks.command, mode="async", description="asks-for-more")
    model.on("Start what asks", begin, says("It runs."))
    async with (
        own_home.serve(HOLDFAST_STALL_AFTER_SECONDS="0.1") as server,
        connected(server.client()) as client,
    ):
        session = await client.create_session(**approving(on_event=heard))
        await reply_to(session, "Start what asks")
        await asks.begun()
        stuck = await heard.until(SystemNotificationData)
        assert isinstance(stuck.kind, SystemNotificationUnclassified)
        task = await the_task(session)
        assert task.status is TaskStatus.RUNNING
        assert stuck.kind.metadata == {"shellId": task.id, "description": "asks-for-more", "status": "stalled"}
        assert "appears stuck" in stuck.content
        asks.go_on()
        await heard.until(SystemNotificationData, of_task(task.id))
        await session.rpc.tasks.wait_for_pending(timeout=60)
        assert len(await history(session, SystemNotificationData)) == 2


ENDS: list[tuple[NoticeKind, int | None]] = [
    ("completed", 0),
    ("failed", 7),
    ("failed", None),
    ("killed", 143),
    ("killed", None),
    ("lost", None),
]


@pytest.mark.parametrize(("kind", "exit_code"), ENDS)
def test_every_kind_of_end_of_a_command_is_announced(kind: NoticeKind, exit_code: int | None) -> None:
    notice = TaskNotice(task_id=TaskId("t1"), kind=kind, command="make <all>", exit_code=exit_code)
    event = Event(Position(1), EventId(str(uuid.uuid4())), 0, TaskNotified(notice=notice))
    (wire,) = CopilotProjection("s").project(event)
    found = session_event_from_dict(msgspec.to_builtins(wire)).data
    assert isinstance(found, SystemNotificationData)
    assert isinstance(found.kind, SystemNotificationShellCompleted)
    assert (found.kind.shell_id, found.kind.exit_code, found.kind.description) == ("t1", exit_code, None)
    assert f"<status>{kind}</status>" in found.content
    assert "make &lt;all&gt;" in found.content


# Into the background


async def test_another_client_can_promote_the_command_that_a_turn_waits_for(
    client: CopilotClient, another: CopilotClient, model: Model, work: Work
) -> None:
    model.on("Wait for it", calls("bash", command=work.command, description="promoted-one", **SYNC), says("I go on."))
    model.on("promoted-one", says("Good."))
    session = await client.create_session(**approving())
    answer = asyncio.create_task(reply_to(session, "Wait for it"))
    await work.begun()
    same = await another.resume_session(session.session_id, **approving())
    waited_for = (await same.rpc.tasks.get_current_promotable()).task
    assert isinstance(waited_for, TaskShellInfo)
    assert (waited_for.execution_mode, waited_for.can_promote_to_background) == (TaskExecutionMode.SYNC, True)
    assert waited_for == await the_task(same)
    promoted = (await same.rpc.tasks.promote_current_to_background()).task
    assert isinstance(promoted, TaskShellInfo)
    assert promoted.id == waited_for.id
    assert (promoted.execution_mode, promoted.status) == (TaskExecutionMode.BACKGROUND, TaskStatus.RUNNING)
    assert promoted.can_promote_to_background is False
    assert promoted.pid == waited_for.pid == work.pid
    assert await answer == "I go on."
    (told,) = tool_results(model.last_call_about("Wait for it"))
    assert "still running" in told
    assert not (await same.rpc.tasks.promote_to_background(TasksPromoteToBackgroundRequest(id=promoted.id))).promoted
    assert (await same.rpc.tasks.promote_current_to_background()).task is None
    heard = Heard(session)
    work.go_on()
    await heard.until(SystemNotificationData, of_task(promoted.id))
    await heard.until_idle()
    assert work.times == 1


async def test_promotion_of_a_command_that_ends_meanwhile_reports_the_end(
    client: CopilotClient, model: Model, work: Work
) -> None:
    """Either the command is promoted first, and its end is announced, or it ends first, and its result says so."""
    model.on("Wait for it, or not", calls("bash", command=work.command, description="either-way", **SYNC), says("So."))
    model.on("either-way", says("Good."))
    session = await client.create_session(**approving())
    answer = asyncio.create_task(reply_to(session, "Wait for it, or not"))
    await work.begun()
    task = await the_task(session)
    work.go_on()
    promoted = await session.rpc.tasks.promote_to_background(TasksPromoteToBackgroundRequest(id=task.id))
    async with patience():
        await answer
    await session.rpc.tasks.wait_for_pending(timeout=60)
    (told,) = tool_results(model.last_call_about("Wait for it, or not"))
    assert promoted.promoted == ("still running" in told)
    assert len(await history(session, SystemNotificationData)) == int(promoted.promoted)
    assert work.times == 1


# Ending it


async def test_task_cancelled_by_a_person_ends_and_the_model_gets_news(
    client: CopilotClient, model: Model, work: Work
) -> None:
    model.on("to-be-cancelled", says("As you like."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    task = await started(session, model, work, "Start it to cancel it", description="to-be-cancelled")
    assert (await session.rpc.tasks.cancel(TasksCancelRequest(id=task.id))).cancelled
    assert await work.is_gone()
    assert (await the_task(session)).status is TaskStatus.CANCELLED
    noted = await heard.until(SystemNotificationData, of_task(task.id))
    assert "<status>killed</status>" in noted.content
    assert not (await session.rpc.tasks.cancel(TasksCancelRequest(id=task.id))).cancelled
    await session.rpc.tasks.wait_for_pending(timeout=60)
    assert len(await history(session, SystemNotificationData)) == 1
    _, last = await read_until(session, task, lambda _, found: found.exit is not None)
    assert last.exit is not None
    assert last.exit.status is TaskStatus.CANCELLED


async def test_cancelling_a_foreground_command_ends_the_call_and_not_the_turn(
    client: CopilotClient, model: Model, work: Work
) -> None:
    model.on("Wait for what is cancelled", calls("bash", command=work.command, **SYNC), says("It was ended."))
    session = await client.create_session(**approving())
    answer = asyncio.create_task(reply_to(session, "Wait for what is cancelled"))
    await work.begun()
    task = await the_task(session)
    assert (await session.rpc.tasks.cancel(TasksCancelRequest(id=task.id))).cancelled
    assert await answer == "It was ended."
    assert await work.is_gone()
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.success is False
    assert await history(session, SystemNotificationData) == []
    assert await listed(session) == []


async def test_abort_kills_the_foreground_command_and_no_background_task(
    client: CopilotClient, model: Model, work: Work, tmp_path: Path, pipe: MakePipe
) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    task = await started(session, model, work, "Start one that stays")
    waited_for = Work(tmp_path, pipe, "waited-for")
    model.on("Wait for another one", calls("bash", command=waited_for.command, **SYNC), says("Never said."))
    await session.send("Wait for another one")
    await waited_for.begun()
    await session.abort()
    assert await waited_for.is_gone()
    await heard.until_idle(times=2)
    remaining = [one.id for one in await listed(session) if one.status is TaskStatus.RUNNING]
    assert remaining == [task.id]
    work.go_on()


async def test_only_ended_tasks_are_removed_and_only_once(client: CopilotClient, model: Model, work: Work) -> None:
    session = await client.create_session(**approving())
    task = await started(session, model, work, "Start it to remove it")
    removing = TasksRemoveRequest(id=task.id)
    assert not (await session.rpc.tasks.remove(removing)).removed
    work.go_on()
    await session.rpc.tasks.wait_for_pending(timeout=60)
    assert (await session.rpc.tasks.remove(removing)).removed
    assert not (await session.rpc.tasks.remove(removing)).removed
    assert await listed(session) == []
    assert len(await history(session, SystemNotificationData)) == 1


async def test_wait_for_pending_waits_for_the_task_and_the_answer_to_its_news(
    client: CopilotClient, model: Model, work: Work
) -> None:
    model.on("is-waited-for", says("The last word."))
    session = await client.create_session(**approving())
    await started(session, model, work, "Start it and wait for all", description="is-waited-for")
    held = model.hold("is-waited-for")
    waiting = asyncio.create_task(session.rpc.tasks.wait_for_pending(timeout=60))
    work.go_on()
    await held.until_reached()
    assert await ask(session, "session.metadata.isProcessing") == {"processing": True}
    assert not waiting.done()
    held.release()
    await waiting
    said = [data.content for data in await history(session, AssistantMessageData)]
    assert said[-1] == "The last word."


async def test_wait_for_pending_is_not_misled_by_a_turn_that_ends_before_the_news(
    client: CopilotClient, model: Model, work: Work
) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    model.on("ends-beside-the-last-word", says("The very last word."))
    await started(session, model, work, "Start it before the last word", description="ends-beside-the-last-word")
    model.on("Say something long", says("Almost the last word."))
    held = model.hold("Say something long")
    await session.send("Say something long")
    await held.until_reached()
    work.go_on()
    await heard.until(SessionBackgroundTasksChangedData, times=2)
    waiting = asyncio.create_task(session.rpc.tasks.wait_for_pending(timeout=60))
    held.release()
    await waiting
    said = [data.content for data in await history(session, AssistantMessageData)]
    assert said[-2:] == ["Almost the last word.", "The very last word."]


# Crashes


@contextlib.asynccontextmanager
async def resumed(home: Home, session_id: str, heard: Heard | None = None) -> AsyncIterator[CopilotSession]:
    """A new runtime on the same home, and the session in it."""
    async with home.serve() as server, connected(server.client()) as client:
        yield await client.resume_session(session_id, **approving(continue_pending_work=True, on_event=heard))


async def killed_in(server: Server, client: CopilotClient) -> None:
    await server.kill()
    await client.force_stop()


@pytest.mark.parametrize("ends_first", [True, False], ids=["it ends before the restart", "it still runs"])
async def test_end_of_a_task_is_announced_once_across_a_killed_runtime(
    own_home: Home, work: Work, ends_first: bool
) -> None:
    model = own_home.model
    model.on("outlives-a-crash", says("It came through."))
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        task = await started(session, model, work, "Start it and crash", description="outlives-a-crash")
        await killed_in(server, client)
    if ends_first:
        work.go_on()
        assert await work.is_gone()
    async with resumed(own_home, session.session_id) as again:
        if not ends_first:
            assert (await the_task(again)).pid == work.pid
            work.go_on()
        await again.rpc.tasks.wait_for_pending(timeout=60)
        assert await final_answer(again) == "It came through."
        (noted,) = await history(again, SystemNotificationData)
        assert of_task(task.id)(noted)
        assert "ended" in noted.content
        text, last = await read_until(again, await the_task(again), lambda _, found: found.exit is not None)
        assert text == "begun\nended\n"
        assert last.exit is not None
        assert (last.exit.status, last.exit.exit_code) == (TaskStatus.COMPLETED, 0)
    assert work.times == 1


async def test_promotion_of_a_foreground_command_survives_a_crash(own_home: Home, work: Work) -> None:
    model = own_home.model
    wait = calls("bash", command=work.command, description="promoted-later", **SYNC)
    model.on("Wait for it through a crash", wait, says("I went on."))
    model.on("promoted-later", says("So it ended."))
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        await session.send("Wait for it through a crash")
        await work.begun()
        before = await the_task(session)
        await killed_in(server, client)
    async with resumed(own_home, session.session_id) as again:
        assert (await the_task(again)).id == before.id
        promoted = (await again.rpc.tasks.promote_current_to_background(timeout=60)).task
        assert isinstance(promoted, TaskShellInfo)
        assert (promoted.id, promoted.pid) == (before.id, work.pid)
        assert await final_answer(again) == "I went on."
        work.go_on()
        await again.rpc.tasks.wait_for_pending(timeout=60)
        assert await final_answer(again) == "So it ended."
        assert len(await history(again, SystemNotificationData)) == 1
        assert len(await history(again, ToolExecutionCompleteData)) == 1
    assert work.times == 1


async def test_a_cancelled_task_stays_cancelled_although_the_runtime_was_killed(own_home: Home, work: Work) -> None:
    model = own_home.model
    model.on("cancelled-before-the-crash", says("Never mind."))
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        task = await started(session, model, work, "Cancel it and crash", description="cancelled-before-the-crash")
        held = model.hold("cancelled-before-the-crash")
        assert (await session.rpc.tasks.cancel(TasksCancelRequest(id=task.id))).cancelled
        await held.until_reached()
        await killed_in(server, client)
    held.release()
    async with resumed(own_home, session.session_id) as again:
        assert await final_answer(again) == "Never mind."
        assert (await the_task(again)).status is TaskStatus.CANCELLED
        assert len(await history(again, SystemNotificationData)) == 1
    assert await work.is_gone()
