"""A client for the crash campaign: it repeats every request that was not acknowledged before a crash, under the same
ids, and never repeats an acknowledged one."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from holdfast.events import message, turn
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, FileId, Key, MessageId, Position, RequestId, SessionId, TurnId
from holdfast.events.inbox import InboxItem, TaskNews
from holdfast.events.request import Decision, ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.events.role import RoleBounds
from holdfast.events.session import ClientTool, SettingsChanged
from holdfast.events.task import TaskNotified
from holdfast.events.webhook import REPORTED_EVENTS, TEST_EVENT, reported_types
from holdfast.files.errors import FileMissing
from holdfast.files.files import Files
from holdfast.live.live import Delta
from holdfast.server.errors import Conflict, OperationError
from holdfast.server.operations import Answered, DeliveryChoice, Operations, SessionOptions
from holdfast.server.operations.tasks import TaskOperations
from holdfast.server.presence import Arrival, Presence
from holdfast.session.state import State
from holdfast.store.audit import Actor, audit_entry
from holdfast.store.budget import Change, OwnerLimits, plan
from holdfast.store.clock import SystemClock
from holdfast.store.errors import StoreUnavailable
from holdfast.store.keys import KeyRow
from holdfast.store.store import Cursor
from holdfast.store.tasks import TaskRow
from holdfast.store.webhooks import WebhookChange, WebhookDelivery, WebhookRow
from proof.crash import receiver
from proof.crash.journal import Acknowledged, AnyEntry, Journal, Opened, Read, Shown, Unanswered

SECRET_KEY = "key:campaign"
SEALED = b"sealed"
"""The secret that a client entrusts to its session. All processes of a campaign have the key."""

CAMPAIGN = Actor(kind="program", id="campaign")

TRIMMED_AT = 0
"""When the entries of the audit log were written that are trimmed again."""
WEBHOOK = "hook"

LOOK_SECONDS = 0.003
"""Between two looks at whether the session has come to rest."""


class Client:
    """One process's client of one session. It follows the session, and records all shown text in the journal."""

    def __init__(
        self,
        operations: Operations,
        key: Key,
        journal: Journal,
        before: tuple[AnyEntry, ...],
        *,
        work: Path,
        gates: dict[str, asyncio.Event],
    ) -> None:
        self.operations = operations
        self.journal = journal
        self.files: Files | None = None
        """For scenarios that have files."""
        self.tasks: TaskOperations | None = None
        """For scenarios that have commands, which run in `work`."""
        self._work = work
        self._presence = Presence(operations, operations.store, SystemClock())
        self.key = key
        self.events: list[Event] = []
        self.shown_of: set[MessageId] = set()
        self._before = before
        self._done = {entry.step: entry for entry in before if isinstance(entry, Acknowledged)}
        self.gone = False
        """The session was deleted."""
        self._gates = gates
        """The gates of all clients of the process."""
        self._points: list[str] = []
        self._news = asyncio.Event()
        self._reading: list[asyncio.Task[None]] = []

    # The life of a client

    async def arrive(self, options: SessionOptions) -> None:
        """Read the session, create it if this is the first process, and follow it from the last cursor."""
        row = await self.operations.store.row(self.key)
        fence = (await self.operations.store.tails([self.key]))[self.key][0]
        self.journal.add(Opened(process=self._process, fence=fence, head=row.head if row else None))
        await self._once("create", lambda: self.operations.create(self.key.owner, options, self.key.session))
        if row is not None:
            await self._ask("resume", lambda: self.operations.note_resume(self.key))
        self._reading = [asyncio.create_task(work) for work in (self._watch(), self._keep_reading())]

    async def leave(self) -> None:
        for task in self._reading:
            task.cancel()
        for outcome in await asyncio.gather(*self._reading, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    def pass_point(self, point: str) -> None:
        """The process passed a crash point."""
        self._points.append(point)
        self._news.set()

    # The operations of a scenario's program

    async def send(
        self,
        message_id: str,
        text: str,
        delivery: DeliveryChoice = "steer",
        bounds: RoleBounds | None = None,
        files: tuple[str, ...] = (),
    ) -> None:
        async def send() -> str:
            sent = await self.operations.send(
                self.key, text, message_id=MessageId(message_id), delivery=delivery, bounds=bounds, file_ids=files
            )
            return sent.state

        await self._once(f"send {message_id}", send)

    async def send_instead(self, message_id: str, text: str, *, number: int) -> None:
        """Send other text in place of the message's first text (1), its second (2), and so on."""
        said = [event for event in self.events if _is_said(event.body, message_id)]
        taken_back = said[number - 1]
        words = message.UserMessage(message_id=MessageId(message_id), turn_id=TurnId(""), content=text, delivery="idle")

        async def send() -> str:
            before = Position(taken_back.position - 2)  # The turn's start goes with it.
            sent = await self.operations.send_instead(self.key, words, replaces=taken_back.position, kept=before)
            return sent.state

        await self._once(f"instead {message_id} {number}", send)

    async def stop(self, stop_id: str, *, keep_queued: bool = False, number: int | None = None) -> None:
        """Stop the turn that runs; with a `number`, only if it is the session's first (1), second (2), and so on."""
        started = [event.body.turn_id for event in self.events if isinstance(event.body, turn.TurnStarted)]
        meant = started[number - 1] if number is not None else None

        async def stop() -> str:
            stopped = await self.operations.stop(self.key, stop_id=stop_id, keep_queued=keep_queued, meant_for=meant)
            return stopped.outcome

        await self._once(f"stop {stop_id}", stop)

    async def permit(self, answer_id: str, decision: Decision = "approved") -> None:
        """Answer the permission that was asked for first."""
        asked = await self.request(PermissionRequested)
        await self._answer(
            answer_id,
            asked,
            lambda: self.operations.decide_permission(
                self.key, asked, decision, answer_id=answer_id, answered_by=answer_id
            ),
        )

    async def permit_always(self, answer_id: str) -> None:
        """Approve what was asked for first, for all sessions of the owner; in every process anew, as a client does that
        sends its answer again."""
        asked = await self.request(PermissionRequested)

        async def approve() -> str:
            answered = await self.operations.approve_always(
                self.key, asked, "", rules=("guarded_line",), answer_id=answer_id, answered_by=answer_id
            )
            return "duplicate" if answered.duplicate else "accepted"

        await self._ask(f"answer {answer_id}", approve, about=asked)

    async def note_held(self, when: str) -> None:
        """Note how many permissions the owner and this session have."""

        async def held() -> str:
            grants = await self.operations.store.grants(self.key.owner)
            return f"{len(grants) + len((await self.operations.state(self.key)).allow)} held"

        await self._once(f"held {when}", held)

    async def revoke_held(self) -> None:
        """Revoke all permissions of the owner beyond single sessions."""

        async def revoke() -> None:
            for grant in await self.operations.store.grants(self.key.owner):
                await self.operations.store.revoke_grant(self.key.owner, grant.place, grant.rule)

        await self._once("ungrant held", revoke)

    async def set_budget(self, day: int) -> None:
        """Set the owner's budget of a day."""

        async def edit() -> None:
            await self.operations.store.edit_budget(
                self.key.owner, lambda seen: plan(seen.budget, Change(at=0, to=OwnerLimits(day=day)), seen.time)
            )

        await self._once("set budget", edit)

    async def settle(self) -> None:
        """Settle what is reserved for calls that nobody will record."""

        async def settle() -> None:
            await self.operations.store.settle_left()

        await self._once("settle", settle)

    async def give_result(self, answer_id: str, content: str) -> None:
        asked = await self.request(ExternalToolRequested)
        await self._answer(
            answer_id,
            asked,
            lambda: self.operations.answer_tool(self.key, asked, content, answer_id=answer_id, answered_by=answer_id),
        )

    async def reply(self, answer_id: str, text: str) -> None:
        asked = await self.request(UserInputRequested)
        await self._answer(
            answer_id,
            asked,
            lambda: self.operations.answer_question(self.key, asked, text, answer_id=answer_id, answered_by=answer_id),
        )

    async def edit(self, message_id: str, text: str) -> None:
        await self._once(
            f"edit {message_id}", lambda: self.operations.edit_queued(self.key, MessageId(message_id), text)
        )

    async def remove(self, message_id: str) -> None:
        await self._once(f"remove {message_id}", lambda: self.operations.remove_queued(self.key, MessageId(message_id)))

    async def reorder(self, *message_ids: str) -> None:
        wanted = [MessageId(found) for found in message_ids]
        await self._once(f"reorder {' '.join(wanted)}", lambda: self.operations.reorder_queue(self.key, wanted))

    async def record(self, name: str, *bodies: Body) -> None:
        await self._once(f"record {name}", lambda: self.operations.record(self.key, *bodies))

    async def see(self, position: int) -> None:
        await self._once(f"see {position}", lambda: self.operations.see(self.key, Position(position)))

    async def annotate(self, **metadata: str | None) -> None:
        """Pin the session, and note this about it."""
        names = " ".join(metadata)
        await self._once(
            f"annotate {names}", lambda: self.operations.annotate(self.key, pinned=True, metadata=metadata)
        )

    async def rename(self, title: str) -> None:
        await self._once(f"rename {title}", lambda: self.operations.rename(self.key, title))

    async def change_model(self, name: str) -> None:
        await self._once(f"model {name}", lambda: self.operations.change_model(self.key, name))

    async def attach(self, attachment_id: str) -> None:
        await self._once(f"attach {attachment_id}", lambda: self.operations.attach(self.key, attachment_id))

    async def detach(self, attachment_id: str) -> None:
        await self._once(f"detach {attachment_id}", lambda: self.operations.detach(self.key, attachment_id))

    async def decline(self, attachment_id: str) -> None:
        """Attach as the only client that could decide, and decline. A client of a killed process counts as present
        until the process is known to be dead. So this is one step with the end of the turn, which comes then: a client
        that comes after a crash declined nothing."""
        asked = await self.request(PermissionRequested)

        async def decline() -> bool:
            await self._presence.arrive(self.key, Arrival(attachment_id=attachment_id, capabilities=("permission",)))
            was_open = await self._presence.decline(self.key, attachment_id, asked)
            await self.until(lambda: self.ended() > 0)
            return was_open

        await self._once(f"decline {attachment_id}", decline, about=asked)

    async def decline_until_alone(self, attachment_id: str, other_id: str) -> None:
        """Decline beside a client that could decide and leaves unannounced: then no client can. One step, as above."""
        asked = await self.request(PermissionRequested)

        async def decline() -> bool:
            for name in (other_id, attachment_id):
                await self._presence.arrive(self.key, Arrival(attachment_id=name, capabilities=("permission",)))
            was_open = await self._presence.decline(self.key, attachment_id, asked)
            await self._presence.leave(self.key, other_id)
            await self.until(lambda: self.ended() > 0)
            return was_open

        await self._once(f"decline {attachment_id} without {other_id}", decline)

    async def offer(self, name: str) -> None:
        """Be present in this process with a tool of that name. One that a dead process offered is free only when that
        is known to be dead."""
        brought = ClientTool(name=name, description="A tool.", parameters={"type": "object"})
        arrival = Arrival(attachment_id=f"{name}:{self._process}", tools=(brought,))

        async def is_attached() -> bool:
            with contextlib.suppress(Conflict):
                await self._presence.arrive(self.key, arrival)
                return True
            return False

        await self._look_until(is_attached)
        await self._ask(f"offer {name}", lambda: self._presence.offer(self.key, arrival))

    async def meets(self, name: str, other: str) -> None:
        """Wait until another process of the trial meets this one under these names. Later processes do not wait."""
        self.is_first(f"meets-{name}")
        place = self._work.with_name(f"meets-{other}")

        async def is_there() -> bool:
            return os.access(place, os.F_OK)

        await self._look_until(is_there)

    async def offered(self, *names: str) -> None:
        """Wait until the model is offered these client tools, or was."""

        async def are_offered() -> bool:
            tools = (await self.operations.state(self.key)).client_tools
            return self.ended() > 0 or {found.name for found in tools} >= set(names)

        await self._look_until(are_offered)

    async def come_back_without_pending_work(self, attachment_id: str) -> None:
        """Resume the session in a process that knows nothing of it, and leave pending work unchanged."""

        async def resume() -> bool:
            arrival = Arrival(attachment_id=attachment_id)
            found = await self._presence.resume(self.key, arrival, continue_pending_work=False, settings=_named)
            return found.interrupted

        await self._once(f"come back {attachment_id}", resume)

    async def suspend(self, stop_id: str) -> None:
        async def suspend() -> str:
            return (await self.operations.stop(self.key, stop_id=stop_id, keep_queued=True, cause="suspended")).outcome

        await self._once(f"suspend {stop_id}", suspend)

    async def rewind_to_end_of(self, number: int) -> None:
        ends = [event.position for event in self.events if isinstance(event.body, turn.TurnEnded)]
        kept, rewind_id = ends[number - 1], f"r{number}"
        await self._once(f"rewind {number}", lambda: self.operations.rewind(self.key, kept, rewind_id=rewind_id))

    async def compact(self, compaction_id: str) -> None:
        """Ask for a compaction, and do not wait for it."""
        await self._once(
            f"compact {compaction_id}", lambda: self.operations.compact(self.key, compaction_id=compaction_id)
        )

    async def cancel_compaction(self, cancel_id: str) -> None:
        cancel = self.operations.cancel_compaction
        await self._once(f"cancel {cancel_id}", lambda: cancel(self.key, cancel_id=cancel_id))

    async def pin(self, message_id: str) -> None:
        await self._once(f"pin {message_id}", lambda: self.operations.pin(self.key, MessageId(message_id)))

    async def unpin(self, message_id: str) -> None:
        await self._once(f"unpin {message_id}", lambda: self.operations.unpin(self.key, MessageId(message_id)))

    async def grant(self, rule: str) -> None:
        await self._once(f"grant {rule}", lambda: self.operations.store.grant(self.key.owner, "", [rule]))

    async def revoke_grant(self, rule: str) -> None:
        await self._once(f"ungrant {rule}", lambda: self.operations.store.revoke_grant(self.key.owner, "", rule))

    async def entrust(self) -> None:
        """Give the session something to keep, in every process anew, as a client does that resumes."""
        keep = self.operations.store.keep_secret
        await self._ask("entrust", lambda: keep(self.key, keeper=SECRET_KEY, sealed=SEALED))

    async def lose_secret(self) -> None:
        lose = self.operations.store.lose_secret
        await self._once("lose", lambda: lose(self.key, keeper=SECRET_KEY, sealed=SEALED))

    async def make_key(self) -> None:
        """Create an API key, one for each process: a process that did not receive its key creates another."""
        key_id = f"k{self._process}"
        row = KeyRow(key_id=key_id, name="laptop", owner=self.key.owner, role="user", digest=b"digest", created_at=1)
        told = audit_entry(1, CAMPAIGN, "key.created", target=key_id)
        await self._once(f"key {key_id}", lambda: self.operations.store.add_key(row, audit=told))

    async def revoke_key(self) -> None:
        key_id = f"k{self._process}"
        told = audit_entry(1, CAMPAIGN, "key.revoked", target=key_id)
        await self._once(f"revoke {key_id}", lambda: self.operations.store.revoke_key(key_id, audit=told))

    async def audit(self) -> None:
        """Two entries, of which the older one is trimmed."""
        old, new = (audit_entry(at, CAMPAIGN, "session.exported", target=str(at)) for at in (TRIMMED_AT, 1))
        await self._once("audit old", lambda: self.operations.store.audit(old))
        await self._once("audit new", lambda: self.operations.store.audit(new))
        trim = self.operations.store.trim_audit
        await self._once("trim", lambda: trim(1, audit=audit_entry(1, CAMPAIGN, "audit.trimmed")))

    async def take_back(self) -> None:
        await self._once("take back", lambda: self.operations.store.drop_secret(self.key))

    async def delete(self) -> None:
        await self._once("delete", lambda: self.operations.delete(self.key))

    async def upload(self, file_id: str, content: str) -> None:
        async def pieces() -> AsyncGenerator[bytes, None]:
            yield content.encode()

        async def upload() -> str:
            row = await self._files().add(self.key.owner, f"{file_id}.txt", pieces(), file_id=FileId(file_id))
            return row.digest

        await self._once(f"upload {file_id}", upload)

    async def keep_file(self, file_id: str) -> None:
        await self._once(f"keep-file {file_id}", lambda: self._files().keep(self.key.owner, file_id, is_kept=True))

    async def use_file(self, file_id: str) -> None:
        await self._once(f"use {file_id}", lambda: self.operations.store.use_files(self.key, [FileId(file_id)]))

    async def delete_file(self, file_id: str) -> None:
        """Delete a file. An earlier process may have done it."""

        async def delete() -> None:
            with contextlib.suppress(FileMissing):
                await self._files().delete(self.key.owner, file_id)

        await self._once(f"delete-file {file_id}", delete)

    async def sweep(self) -> None:
        """Remove what nothing needs: no other process uploads anything, and every file is old by now."""
        await asyncio.sleep(LOOK_SECONDS)
        await self._once("sweep", lambda: self._files().sweep())

    def _files(self) -> Files:
        assert self.files is not None, "the scenario has no files"
        return self.files

    async def to_background(self) -> None:
        """Let the command that the turn waits for continue in the background."""
        found = await self._row_of_command()

        async def move() -> str:
            return (await self._tasks().to_background(self.key, found.task_id)).state

        await self._once("background", move)

    async def kill_task(self, name: str) -> None:
        """Kill the command of that name, as a person would."""
        found = next(row for row in await self.operations.store.tasks(self.key) if f">> {name};" in row.command)

        async def kill() -> str:
            return (await self._tasks().kill(self.key, found.task_id)).row.status

        await self._once(f"kill {name}", kill)

    def touch(self, name: str) -> None:
        """Commands wait for files."""
        (self._work / name).touch()

    async def create_again(self) -> None:
        """Operations of a late client that does not know that the session was deleted."""
        await self._once(
            "create again", lambda: self.operations.create(self.key.owner, SessionOptions(), self.key.session)
        )

    # Conditions to wait for

    def gate(self, name: str) -> asyncio.Event:
        """Models and tools wait at a gate until the program sets it."""
        return self._gates.setdefault(name, asyncio.Event())

    def open(self, name: str) -> None:
        self.gate(name).set()
        self._news.set()

    def is_first(self, name: str) -> bool:
        """Whether no process of the trial has asked this for that name."""
        try:
            os.close(os.open(self._work.with_name(name), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def passed(self, part: str) -> bool:
        """Whether this process passed a crash point whose name contains this part."""
        return any(part in point for point in self._points)

    # Webhooks

    async def register_webhook(self) -> None:
        """Register a webhook, change it, and delete another one."""
        store, owner = self.operations.store, self.key.owner

        async def register(webhook_id: str) -> None:
            if await store.webhook(webhook_id) is None:
                row = WebhookRow(
                    webhook_id=webhook_id,
                    owner=owner,
                    url=receiver.url_of(self._work.parent),
                    events=REPORTED_EVENTS,
                    types=reported_types(REPORTED_EVENTS),
                    created_at=1,
                    secret=receiver.SECRET,
                )
                await store.add_webhook(row, limit=None)

        await self._once("other webhook", lambda: register("other"))
        await self._once("delete webhook", lambda: store.delete_webhook(owner, "other"))
        await self._once("webhook", lambda: register(WEBHOOK))
        change = WebhookChange(description="of a campaign")
        await self._once("change webhook", lambda: store.change_webhook(owner, WEBHOOK, change))

    async def test_webhook(self) -> None:
        test = WebhookDelivery(
            webhook_id=WEBHOOK,
            event_id=EventId("test"),
            key=Key(self.key.owner, SessionId("")),
            position=Position(0),
            event_type=TEST_EVENT,
            time=1,
            is_single=True,
        )

        async def send() -> None:
            if await self.operations.store.delivery(self.key.owner, WEBHOOK, test.event_id) is None:
                await self.operations.store.test_webhook(test, limit=1)

        await self._once("test webhook", send)

    async def events_are_delivered(self) -> None:
        async def are_delivered() -> bool:
            return (await self.operations.store.webhook_backlog(WEBHOOK)).pending == 0

        await self._look_until(are_delivered)

    async def send_event_again(self) -> None:
        first = next(event.id for event in self.events if isinstance(event.body, turn.TurnEnded))
        store = self.operations.store
        await self._once("resend event", lambda: store.send_again(self.key.owner, WEBHOOK, first))

    async def drop_webhook(self) -> None:
        """Drop the records of the deliveries, which have ended."""
        store = self.operations.store
        await self._once("drop deliveries", lambda: store.drop_old_deliveries(1 << 52))

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the events read so far satisfy the condition."""
        while not is_so():
            self._news.clear()
            await self._news.wait()

    async def turn_shows(self, number: int) -> None:
        """Wait until readers were shown text of that turn, or it is over."""
        await self.until(lambda: self.gone or self._shows(number) or self.ended() >= number)

    async def request(self, kind: type[PermissionRequested | ExternalToolRequested | UserInputRequested]) -> RequestId:
        """The first request of a kind, once it was asked."""
        await self.until(lambda: any(isinstance(event.body, kind) for event in self.events))
        return next(event.body.request_id for event in self.events if isinstance(event.body, kind))

    def ended(self) -> int:
        return sum(isinstance(event.body, turn.TurnEnded) for event in self.events)

    async def turns_end(self, count: int) -> None:
        """Wait until so many turns have ended and the session is at rest: idle, with an empty inbox and without a
        holder."""
        await self.until(lambda: self.ended() >= count)
        await self._look_until(self._is_at_rest)

    async def released(self) -> None:
        """Wait until the session waits for a person or a client and has no holder."""
        await self._look_until(self._is_waiting)

    async def asked(self) -> None:
        """Wait until the session waits for a permission and no process holds it, or the permission was decided."""
        await self.request(PermissionRequested)

        async def is_asked() -> bool:
            return await self._is_waiting() or not (await self.operations.session(self.key)).open_requests

        await self._look_until(is_asked)

    async def at_rest(self) -> None:
        await self._look_until(self._is_at_rest)

    async def told(self, count: int) -> None:
        """Wait until the log has so much news of tasks."""
        await self.until(lambda: sum(isinstance(event.body, TaskNotified) for event in self.events) >= count)

    async def has_run(self, name: str) -> None:
        """Wait until the command of that name has written its line."""

        async def has_run() -> bool:
            file = self._work / name
            return self.gone or (file.exists() and file.stat().st_size > 0)

        await self._look_until(has_run)

    async def tasks_end(self) -> None:
        """Wait until every command of the session has ended, and its row says so."""

        async def have_ended() -> bool:
            rows = await self.operations.store.tasks(self.key)
            return bool(rows) and all(row.status != "running" for row in rows)

        await self._look_until(have_ended)

    async def tasks_are_forgotten(self) -> None:
        async def are_forgotten() -> bool:
            return not await self.operations.store.tasks(self.key)

        await self._look_until(are_forgotten)

    async def commands_are_forgotten(self) -> None:
        """Wait until no command has to be watched any more."""

        async def are_forgotten() -> bool:
            return not await self.operations.store.host_tasks(self._tasks().desk.host)

        await self._look_until(are_forgotten)

    # Behind it

    def _tasks(self) -> TaskOperations:
        assert self.tasks is not None, "this scenario has no commands"
        return self.tasks

    async def _row_of_command(self) -> TaskRow:
        """The row of the session's only command."""
        (found,) = await self.operations.store.tasks(self.key)
        return found

    @property
    def _process(self) -> int:
        return self.journal.process

    def is_done(self, step: str) -> bool:
        """Whether the request was acknowledged, in this process or an earlier one."""
        return step in self._done

    async def _once(self, step: str, ask: Callable[[], Awaitable[object]], about: str = "") -> None:
        """Send a request, unless it was acknowledged before. The journal records the acknowledgement before anything
        else happens."""
        if step not in self._done:
            await self._ask(step, ask, about)

    async def _ask(self, step: str, ask: Callable[[], Awaitable[object]], about: str = "") -> None:
        try:
            outcome, refused = str(await self._insist(step, ask) or ""), ""
        except OperationError as error:
            outcome, refused = "", error.code
        entry = Acknowledged(process=self._process, step=step, outcome=outcome, refused=refused, about=about)
        self.journal.add(entry)
        self._done[step] = entry

    async def _insist(self, step: str, ask: Callable[[], Awaitable[object]]) -> object:
        """Repeat a write whose outcome the store does not know under the same id, as every client does."""
        while True:
            try:
                return await ask()
            except StoreUnavailable as error:
                self.journal.add(Unanswered(process=self._process, step=step, code=error.code))
                await asyncio.sleep(LOOK_SECONDS)

    async def _answer(self, answer_id: str, asked: RequestId, ask: Callable[[], Awaitable[Answered]]) -> None:
        async def answer() -> str:
            return "duplicate" if (await ask()).duplicate else "accepted"

        await self._once(f"answer {answer_id}", answer, about=asked)

    async def _look_until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """The log does not contain a session's holder, so no hint announces a change of it."""
        while True:
            if await is_so():
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_waiting(self) -> bool:
        row = await self.operations.session(self.key)
        return row.status == "waiting" and row.held_by is None

    async def _is_at_rest(self) -> bool:
        """A session of a dead process is claimed once more, though it may have no work left: it is in line until it is
        claimed, and then it is held. So its row is read again after the line, or a claim might be missed."""
        if not await self._is_idle() or (await self.operations.store.turns(self.key.owner)).queued:
            return False
        return await self._is_idle()

    async def _is_idle(self) -> bool:
        row = await self.operations.session(self.key)
        items = await self.operations.store.waiting_items(self.key)
        waiting = [item for item in items if not is_silent(item)]
        return row.status == "idle" and row.turn_id is None and row.held_by is None and not waiting

    def _shows(self, number: int) -> bool:
        """Text of the turn's messages was shown; a message in flight belongs to the last turn that started."""
        started = [event.position for event in self.events if isinstance(event.body, turn.TurnStarted)]
        if len(started) < number:
            return False
        said = {e.body.message_id for e in self.events if isinstance(e.body, message.AssistantMessage)}
        in_flight = self.shown_of - said
        after = [e for e in self.events if isinstance(e.body, message.AssistantMessage)]
        return bool(in_flight) or any(event.position > started[number - 1] for event in after)

    # Reading

    async def _watch(self) -> None:
        """Everything from the start, for the program's own decisions."""
        try:
            async for reading in self.operations.read(self.key).follow():
                if isinstance(reading, Event):
                    self.events.append(reading)
                elif isinstance(reading, Delta):
                    self.shown_of.add(reading.message_id)
                self._news.set()
        except OperationError:
            self.gone = True
            self._news.set()

    async def _keep_reading(self) -> None:
        """Follow from the last cursor of the previous process, into the journal."""
        try:
            async for reading in self.operations.read(self.key, cursor_after(self._before)).follow():
                if isinstance(reading, Event):
                    closes = isinstance(reading.body, message.AssistantMessage)
                    self.journal.add(
                        Read(process=self._process, position=reading.position, event_id=reading.id, closes=closes)
                    )
                elif isinstance(reading, Delta):
                    self.journal.add(
                        Shown(
                            process=self._process,
                            message_id=reading.message_id,
                            block=reading.block,
                            offset=reading.offset,
                            text=reading.text,
                        )
                    )
        except OperationError:
            return  # It was deleted.


async def _named(state: State) -> SettingsChanged:
    return SettingsChanged(client_name="campaign")


def _is_said(body: Body, message_id: str) -> bool:
    return isinstance(body, message.UserMessage) and body.message_id == message_id


def is_silent(item: InboxItem) -> bool:
    """News that waits for the next message."""
    return isinstance(item.item, TaskNews) and item.item.notice.silent


def cursor_after(entries: tuple[AnyEntry, ...]) -> Cursor:
    """The cursor of a reader that received all this."""
    cursor = Cursor()
    for entry in entries:
        if isinstance(entry, Shown):
            end = entry.offset + len(entry.text.encode())
            cursor = Cursor(cursor.position, MessageId(entry.message_id), entry.block, end)
        elif isinstance(entry, Read):
            cursor = _after_event(cursor, Position(entry.position), entry.closes)
    return cursor


def _after_event(cursor: Cursor, position: Position, closes: bool) -> Cursor:
    """The event of a message closes it; any other leaves the reader in the middle of the message in flight."""
    if closes:
        return Cursor(position)
    return Cursor(position, cursor.message_id, cursor.block, cursor.offset)
