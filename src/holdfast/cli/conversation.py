"""A conversation on a screen: one person, one session at a time.

Everything shown comes from the log, so that a later visit shows the same. A typed message is durable before it is
shown as sent.
"""

import asyncio
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec

from holdfast.cli.activity import SessionActivity
from holdfast.cli.answers import decide, permission_answer, question_answer
from holdfast.cli.errors import Refusal, explained
from holdfast.cli.hints import Hints
from holdfast.cli.home import attach, change_model, detach, is_settled, note_resume, tasks_of
from holdfast.cli.request_lines import OpenedRequest, short
from holdfast.cli.screen import Screen, ScreenStatus
from holdfast.cli.setup import SessionSetup
from holdfast.cli.transcript import Style, Transcript, one_line
from holdfast.cli.wait_line import WaitLine, after
from holdfast.client.errors import ClientError, TooMany, Unavailable, Unreachable
from holdfast.events.event import Event
from holdfast.events.ids import MessageId, RequestId
from holdfast.events.message import UserMessage
from holdfast.events.request import PermissionRequested, UserInputRequested
from holdfast.events.turn import TurnEnded, TurnStarted
from holdfast.live.live import Progress
from holdfast.protocol.home import AnySession, Home, SessionStream
from holdfast.protocol.reading import Connection, QueueChanged, Reading
from holdfast.protocol.session import SessionView
from holdfast.server.errors import NotFound, OperationError
from holdfast.store.errors import StoreError
from holdfast.version import __version__

SHOWN_TURNS: Final = 3
"""How many of the last turns are shown when a session is continued."""

LEAVE_SECONDS: Final = 2.0
"""A second Ctrl-C within this time leaves."""

ATTACH_SECONDS: Final = 20.0
"""How often the attachment is renewed; it times out after three times as long."""

LOOK_SECONDS: Final = 0.5
CAPABILITIES: Final = ("permission", "question")

AWAY: Final = (Unreachable, Unavailable, TooMany)
"""Errors of a server that does not answer now, and may later."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `holdfast chat`."""

    setup: SessionSetup
    session: str | None = None
    new: bool = False


class Conversation:
    """The open conversation and its operations, which chat commands use too."""

    def __init__(
        self, home: Home, screen: Screen, *, options: ChatOptions, hints: Hints, commands: Mapping[str, "ChatCommand"]
    ) -> None:
        self.home = home
        self.screen = screen
        self.hints = hints
        self.options = options
        self.activity = SessionActivity()
        self.transcript = Transcript()
        self.leaving = asyncio.Event()
        self._commands = commands
        self._exit_code = 0
        self._attachment = f"chat-{uuid.uuid4()}"
        self._interrupted_at = 0.0
        self._following: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._wait: WaitLine | None = None
        self._next_second: asyncio.TimerHandle | None = None
        """Counts the seconds of a wait that is shown."""
        self._is_away = False
        """Whether the server is away: it does not answer now."""
        self._unsure: dict[str, MessageId] = {}
        """Messages that may or may not have arrived: the text, and the message id that it was sent under."""

    session: AnySession

    @property
    def session_id(self) -> str:
        return self.session.id

    # Start and end

    async def run(self, found: SessionView | None) -> int:
        self.screen.start(self._interrupted)
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._terminated, number)
        try:
            await self.open(found)
            await self._until_left()
        finally:
            await self._close()
            await self.screen.close()
        if self._failure is not None:
            raise self._failure
        self._say_goodbye()
        return self._exit_code

    async def open(self, found: SessionView | None) -> None:
        """Show a session and follow it; make a new one if none is given."""
        await self._close()
        self.session = await self.options.setup.create(self.home) if found is None else self.home.open(found.id)
        self.activity = SessionActivity()
        self.transcript = Transcript(shows_user=self._shows_message, hints=self.hints, fits=self.screen.fits)
        self._read_through: set[RequestId] = set()
        self._answered: set[RequestId] = set()
        self._queue: tuple[str, ...] = ()
        self._wait = None
        self._sent_here: set[MessageId] = set()
        reader = self.session.stream()
        self._introduce(found, await self._tasks_left(found))
        await self._show_past(reader)
        if found is not None:
            await self._come_back()
        self._following = asyncio.create_task(self._follow(reader))
        self._following.add_done_callback(self._stopped_following)
        self._attaching = asyncio.create_task(self._attach())

    async def _come_back(self) -> None:
        await note_resume(self.home, self.session_id)
        model = self.options.setup.model
        if model is not None and model != self.activity.model:
            await change_model(self.home, self.session_id, model)

    async def _tasks_left(self, found: SessionView | None) -> int:
        """The number of tasks that still run. Refreshes them, so that an end that was missed is reported at once."""
        if found is None:
            return 0
        return sum(task.is_running for task in await tasks_of(self.home, self.session_id, foreground=False))

    async def _until_left(self) -> None:
        left = asyncio.create_task(self.leaving.wait())
        typed = asyncio.create_task(self._take_lines())
        assert self._following is not None
        await asyncio.wait((left, typed), return_when=asyncio.FIRST_COMPLETED)
        for task in (left, typed):
            task.cancel()
        await asyncio.gather(left, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            await typed

    async def _close(self) -> None:
        if self._following is None:
            return
        self._count(is_shown=False)
        for task in (self._following, self._attaching, *(self._tasks if self._is_away else ())):
            task.cancel()
        await asyncio.gather(self._following, self._attaching, *self._tasks, return_exceptions=True)
        self._following = None
        with suppress(StoreError):
            await detach(self.home, self.session_id, self._attachment)

    # Typed lines

    async def _take_lines(self) -> None:
        while (line := await self.screen.next_line()) is not None:
            await self._take_line(line)
            if not self.screen.interactive:
                await self.settled()
        if not self.screen.interactive:
            await self.settled()

    async def _take_line(self, line: str) -> None:
        try:
            if not line.strip():
                return
            if command := self._commands.get(line.split()[0]):
                await command(self, line.strip().partition(" ")[2].strip())
            elif not (self.screen.interactive and await self._answer(line)):
                await self.send(line)
        except (OperationError, StoreError, ClientError, Refusal, ValueError) as error:
            self._refused(line, error)

    def _refused(self, line: str, error: Exception) -> None:
        refusal = explained(error)
        if refusal is None:
            raise error
        self.say("bad", f"✗ {refusal.message} [{refusal.code}]")
        if not line.startswith("/") and not self.screen.give_back(line):
            self.say("note", f"  Not sent: {one_line(line)}")

    async def send(self, text: str) -> None:
        # A text that may have arrived is sent again under the same id, so that it is the same message.
        message_id = self._unsure.pop(text, None) or MessageId(str(uuid.uuid4()))
        self._sent_here.add(message_id)
        self.activity.unpromoted[message_id] = text
        self._refresh()
        was_busy = self.activity.busy
        try:
            await self.session.send(text, message_id=message_id)
        except asyncio.CancelledError:
            raise  # The person leaves; whether the message arrived is not known.
        except BaseException as error:
            self.activity.unpromoted.pop(message_id, None)
            if isinstance(error, Unreachable):
                self._unsure[text] = message_id
            raise
        if was_busy and message_id in self.activity.unpromoted and self._prints_queued():
            self.say("note", f"· Queued: {one_line(text)}")
        self._refresh()

    def _prints_queued(self) -> bool:
        """Whether queued messages are printed, because the screen has no place for the queue."""
        return self.screen.echoes or not self.screen.interactive

    async def _answer(self, line: str) -> bool:
        """Take a line as the answer to the current request; False if it is none."""
        match self.current_request():
            case PermissionRequested(request_id=request_id):
                return await self._decide(request_id, line)
            case UserInputRequested(request_id=request_id) as asked:
                answer = question_answer(line, asked)
                if answer is None:
                    raise Refusal("answer_invalid", f"Answer with a number from 1 to {len(asked.choices)}.")
                text, was_freeform = answer
                await self.session.answer(request_id, text, was_freeform=was_freeform)
                self._was_answered(request_id)
                return True
            case _:
                return False

    async def _decide(self, request_id: RequestId, line: str) -> bool:
        decided = permission_answer(line)
        if decided is None:
            self.say("note", "· This is sent as a message. To answer the request, type y, s or n (with a reason).")
            return False
        decision, reason = decided
        if decision in ("approved", "approved-for-session") and self._is_unshown(request_id):
            self.say("bad", "✗ Not approved: only the beginning was shown. Type /show to read all of it, then answer.")
            return True
        await decide(self.session, request_id, decision, feedback=reason)
        self._was_answered(request_id)
        return True

    def _is_unshown(self, request_id: RequestId) -> bool:
        """Whether only the beginning of the request was shown, and the rest has not been read since."""
        return request_id in self.transcript.unshown and request_id not in self._read_through

    async def show_request(self) -> None:
        """Show all of the current request."""
        asked = self.current_request()
        text = self.transcript.unshown.get(asked.request_id) if asked is not None else None
        if asked is None or text is None:
            self.say("note", "· All of it is shown above." if asked else "· No request is open.")
            return
        await self.screen.read_through(text)
        self._read_through.add(asked.request_id)
        self._refresh()

    def _was_answered(self, request_id: RequestId) -> None:
        self._answered.add(request_id)
        self._refresh()

    def current_request(self) -> OpenedRequest | None:
        """The oldest open request that can be answered here."""
        for request_id, asked in self.activity.open_requests.items():
            if request_id not in self._answered and isinstance(asked, PermissionRequested | UserInputRequested):
                return asked
        return None

    # Stop and exit

    def _interrupted(self) -> None:
        if self._is_away:
            self.leaving.set()  # the server is away, so nothing can be stopped
        elif self.activity.busy or self.activity.unpromoted:
            self._in_background(self.stop())
        elif time.monotonic() - self._interrupted_at < LEAVE_SECONDS:
            self.leaving.set()
        else:
            self._interrupted_at = time.monotonic()
            self.say("note", "· Press Ctrl-C again to leave, or type a message.")

    async def stop(self) -> None:
        stopped = await self.session.stop()
        self.activity.unpromoted.clear()
        if stopped.outcome == "nothing_running":
            self.say("note", "· Nothing is running.")
        if stopped.returned and not self.screen.give_back("\n".join(stopped.returned)):
            for text in stopped.returned:
                self.say("note", f"· Taken back from the queue: {one_line(text)}")
        self._refresh()

    def _terminated(self, number: signal.Signals) -> None:
        self._exit_code = 128 + number
        self.leaving.set()

    def _say_goodbye(self) -> None:
        for task_id in self.activity.running_tasks:
            follow = self.hints.command("tasks", "tail", task_id)
            self.say("note", f"· Task {task_id} runs on: {follow}")
        if self._is_away:
            for text in self.activity.unpromoted.values():
                self.say("note", f"· Not known to have arrived: {one_line(text)}")
        if not (self.activity.busy or self.activity.unpromoted or self.activity.running_tasks):
            return
        waits = [asked for asked in self.activity.open_requests if asked not in self._answered]
        self.say("note", "· The work is kept. " + ("It waits for an answer:" if waits else "Come back to it with:"))
        for request_id in waits:
            self.say("note", f"  {self.hints.command('approve', short(request_id))}")
        self.say("note", f"  {self.hints.command('chat', '--session', short(self.session_id))}")

    # Output

    def say(self, style: Style, text: str) -> None:
        self.screen.show(self.transcript.say(style, text))

    def _introduce(self, found: SessionView | None, tasks: int) -> None:
        if found is None:
            model = self.options.setup.model or self.home.default_model
            self.say("note", f"holdfast {__version__} · {model} · session {short(self.session_id)} · /help")
            return
        state = {"idle": "it is idle", "queued": "it has messages queued", "running": "it was at work"}
        doing = state.get(found.status, "it waits for an answer") + (f", and {_tasks_run(tasks)}" if tasks else "")
        title = f" “{one_line(found.title, 60)}”" if found.title else ""
        self.say("note", f"Continuing session {short(self.session_id)}{title}: {doing}. /new starts another.")

    async def _show_past(self, reader: SessionStream) -> None:
        readings = [reading async for reading in reader.until_now()]
        starts = [index for index, reading in enumerate(readings) if _starts_turn(reading)]
        first = starts[-SHOWN_TURNS] if len(starts) > SHOWN_TURNS else 0
        if first:
            whole = self.hints.command("sessions", "show", short(self.session_id))
            self.say("note", f"· {len(starts) - SHOWN_TURNS} earlier turns: {whole}")
        for index, reading in enumerate(readings):
            self._take(reading, show=index >= first)
        await self._read_queue()

    async def _follow(self, reader: SessionStream) -> None:
        try:
            async with aclosing(reader.follow()) as readings:
                async for reading in readings:
                    self._take(reading, show=True)
                    if isinstance(reading, QueueChanged) or _ends_turn(reading):
                        await self._read_queue()
        except (OperationError, StoreError, ClientError) as error:
            self.say("bad", f"✗ {error.message} [{error.code}]")
            self._exit_code = 1
            self.leaving.set()

    def _stopped_following(self, task: asyncio.Task[None]) -> None:
        """Leave with the reader's error: without the reader, no end of a turn would ever be seen."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
            self.leaving.set()

    def _take(self, reading: Reading, *, show: bool) -> None:
        self._wait = after(self._wait, reading, time.monotonic())
        if isinstance(reading, Event):
            self.activity.take(reading)
        elif isinstance(reading, Connection):
            self._is_away = not reading.is_back
        if show:
            self.screen.show(self.transcript.take(reading))
            if isinstance(reading, Event):
                self._suggest_answer(reading)
            elif isinstance(reading, Progress):
                self.say("note", f"  {one_line(reading.text)}")
        self._refresh()

    def _suggest_answer(self, event: Event) -> None:
        """If no person can answer here, show how to answer from another terminal."""
        match event.body:
            case PermissionRequested(request_id=request_id) if not self.screen.interactive:
                self.say("note", f"  To answer: {self.hints.command('approve', short(request_id))} (or deny)")
            case UserInputRequested(request_id=request_id) if not self.screen.interactive:
                self.say("note", f"  To answer: {self.hints.command('answer', short(request_id), 'TEXT')}")
            case _:
                pass

    def _shows_message(self, message: UserMessage) -> bool:
        """Whether a message is shown: not if the terminal already showed it while it was typed."""
        return not (self.screen.echoes and message.message_id in self._sent_here and message.delivery == "idle")

    async def _read_queue(self) -> None:
        with suppress(*AWAY):  # a server that is back reports its queue itself
            messages = await self.session.queue()
            self._queue = tuple(message.text for message in messages)
            for message_id in self.activity.unpromoted.keys() - {message.message_id for message in messages}:
                # Promoted, which the log is about to show; or removed by another client's stop, which it never shows.
                with suppress(NotFound):
                    if (await self.session.receipt(message_id)).state in ("removed", "refused"):
                        self.activity.unpromoted.pop(message_id, None)
        self._refresh()

    def _refresh(self) -> None:
        self._changed.set()
        self._count(is_shown=self._wait is not None and not self.screen.echoes and self.screen.interactive)
        self.screen.update(
            ScreenStatus(
                prompt=self._prompt(),
                state=self._state(),
                about=f"{self.activity.model or self.home.default_model} · {short(self.session_id)}",
                queued=self._shown_queue(),
                busy=self.activity.busy,
                runs_command=self.activity.runs_command,
            )
        )

    def _count(self, *, is_shown: bool) -> None:
        if self._next_second is not None:
            self._next_second.cancel()
        self._next_second = asyncio.get_running_loop().call_later(1.0, self._refresh) if is_shown else None

    def _shown_queue(self) -> tuple[str, ...]:
        if self._is_away:
            return tuple(self.activity.unpromoted.values())
        return self._queue if self.activity.busy else ()

    def _prompt(self) -> str:
        match self.current_request():
            case PermissionRequested(request_id=request_id) if self._is_unshown(request_id):
                return "read it first: /show, or [n]o > "
            case PermissionRequested():
                return "approve? [y]es / [s]ession / [n]o > "
            case UserInputRequested(choices=choices) if choices:
                return f"answer [1-{len(choices)}] > "
            case UserInputRequested():
                return "answer > "
            case _:
                return "> "

    def _state(self) -> str:
        if self._is_away:
            return "the server is away, trying again · Ctrl-C leaves"
        if not self.activity.busy:
            tasks = len(self.activity.running_tasks)
            summarising = " · a summary is being made" if self.activity.compaction is not None else ""
            return (f"ready · {_tasks_run(tasks)}" if tasks else "ready") + summarising
        if self.current_request() is not None:
            return "waits for your answer · Ctrl-C stops"
        if self.activity.open_requests and not self._answered:
            return "waits for a client · Ctrl-C stops"
        tools = ", ".join(one_line(name, 30) for name in self.activity.running_tools.values())
        wait = self._wait.text(time.monotonic(), self.activity.running_tools) if self._wait is not None else ""
        works = wait or f"working{f': {tools}' if tools else ''}"
        if self.activity.waits_for_summary and not tools and not wait:
            return "waits for a summary of the older part · type to add to it · Ctrl-C stops"
        if self.activity.runs_command:
            return f"{works} · Ctrl-B to the background · Ctrl-C stops"
        return f"{works} · type to add to it · Ctrl-C stops"

    # Background work

    async def settled(self) -> None:
        """Wait until everything is shown and the session waits for a person, a client or a message."""
        while True:
            self._changed.clear()
            with suppress(*AWAY):
                if await is_settled(self.session, self.activity.position):
                    return
            with suppress(TimeoutError):
                # Readers get no reading for items that other processes put into the inbox, so this polls.
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()

    async def _attach(self) -> None:
        """Renew the attachment while the conversation is open."""
        can = CAPABILITIES if self.screen.interactive else ()
        while True:
            with suppress(StoreError):
                await attach(self.home, self.session_id, self._attachment, capabilities=can)
            await asyncio.sleep(ATTACH_SECONDS)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (OperationError, StoreError, ClientError) as error:
            self.say("bad", f"✗ {error.message} [{error.code}]")


def _tasks_run(count: int) -> str:
    return "1 task runs" if count == 1 else f"{count} tasks run"


def _starts_turn(reading: Reading) -> bool:
    return isinstance(reading, Event) and isinstance(reading.body, TurnStarted)


def _ends_turn(reading: Reading) -> bool:
    return isinstance(reading, Event) and isinstance(reading.body, TurnEnded)


ChatCommand = Callable[[Conversation, str], Awaitable[None]]
"""The work of a line that begins with a slash. The string is the rest of the line."""
