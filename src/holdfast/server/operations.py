"""Every verb that a surface may call, once. Each returns when what it did is durable, and needs no lease.

A surface never talks to a worker: it puts into the inbox, and whoever holds the session takes it from there.
"""

import itertools
import re
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from holdfast.events import codec, inbox
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import (
    CHOSEN_ID_RULE,
    EventId,
    Key,
    MessageId,
    Owner,
    Position,
    RequestId,
    SessionId,
    TurnId,
    may_be_chosen,
    random_id,
)
from holdfast.events.inbox import InboxItem, PermissionAnswer, QuestionAnswer, StopCause, ToolAnswer
from holdfast.events.message import Image, PageContext, UserMessage
from holdfast.events.request import Decision, PermissionKind, RequestKind
from holdfast.events.session import (
    ClientTool,
    Conventions,
    DirectoryIdentity,
    Mode,
    ModeChanged,
    ModelChanged,
    Provider,
    SessionResumed,
    SessionStarted,
    SettingsChanged,
    TitleChanged,
)
from holdfast.events.tool import MAX_ANSWER_BYTES, ToolError
from holdfast.live.live import Advanced, Changed, Live, Lost, Subscription
from holdfast.models.choice import OWN_MODEL, row_model
from holdfast.server.errors import Conflict, Invalid, NotFound, OperationError
from holdfast.server.reader import Reader
from holdfast.session.bounds import Bounds
from holdfast.session.fold import FOLD_VERSION, fold, restored
from holdfast.session.permissions import EVERY_CALL, BadRule, check_rule
from holdfast.session.policy import policy_of
from holdfast.session.state import State
from holdfast.store.annotations import too_large
from holdfast.store.clock import Clock
from holdfast.store.grants import GrantOrigin
from holdfast.store.log_pages import NO_SNAPSHOT, PAGE_BYTES, PAGE_EVENTS, pages
from holdfast.store.store import (
    HEAD_MOVED,
    Accepted,
    Attachment,
    Clash,
    Committed,
    Cursor,
    LedgerEntry,
    Loaded,
    NewSession,
    Outcome,
    Page,
    Refused,
    Rejected,
    RequestRow,
    Row,
    Store,
    Unit,
    answer_key,
)
from holdfast.store.turn_limits import QuotaCode
from holdfast.tools.working_directory import Identify, identity_of, is_still

DeliveryChoice = Literal["steer", "enqueue", "interrupt", "reject"]

Change = Callable[[State], Awaitable[Sequence[Body]]]
"""From a session's state to the records that change it, or to none. It may be asked again, with a newer state."""

Held = Callable[[Sequence[str]], tuple[str, ...]]
"""From the rules that were granted to those of them that hold for somebody."""

CHANGE_TRIES: Final = 20
"""How often a change is decided anew because something else was appended meanwhile."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_CONTENT_KIND: dict[type[Any], RequestKind] = {
    PermissionAnswer: "permission",
    ToolAnswer: "client_tool",
    QuestionAnswer: "question",
}


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a session may be made with. Anything left out follows the configuration."""

    model: str | None = None
    system_message: str | None = None
    working_directory: str | None = None
    directory_identity: DirectoryIdentity | None = None
    """Which folder that is, where a surface has looked already."""
    tools: tuple[str, ...] | None = None
    client_tools: tuple[ClientTool, ...] = ()
    allow: tuple[str, ...] = ()
    dry_run: bool = False
    title: str | None = None
    wants_title: bool = False
    """A model makes one of the first message, unless the session is given one, or belongs to another."""
    parent: SessionId | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    conventions: Conventions = "holdfast"
    client_name: str = ""
    own_token: bool = False
    """Its client gave it a token of its own to ask the model with."""
    settings: SettingsChanged | None = None
    """Whatever else a surface lets a client choose."""


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was taken out of the queue, with all that was sent with it."""

    message_id: MessageId
    text: str
    context: PageContext | None = None
    mode: str = ""
    model: str | None = None
    thinking: int | None = None


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a message, readable again by its id."""

    message_id: MessageId
    item_key: str
    """What it is called in the inbox."""
    state: inbox.ItemState
    delivery: str
    duplicate: bool = False
    while_running: bool = False
    """A turn was unfinished when it was accepted."""
    waits_for_slot: bool = False
    """Its turn starts when others of the same owner have ended."""
    head: Position | None = None
    """Where the session's log ended when it was accepted: all that comes of it follows. Not known of a duplicate."""
    found_idle: bool = False
    """It starts a turn of its own: none was unfinished, and no message waited. Not known of a duplicate."""
    returned: tuple[str, ...] = ()
    """Texts that `interrupt` took out of the queue."""
    returned_messages: tuple[Returned, ...] = ()
    """The same, with all that was sent with them."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    request_id: RequestId
    answer_id: str
    duplicate: bool = False


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a stop: `stopping` a turn, or there was nothing to stop, or only messages to take back."""

    stop_id: str
    outcome: Literal["stopping", "stopped", "dequeued", "nothing_running", "turn_ended_before"]
    returned: tuple[str, ...] = ()
    returned_messages: tuple[Returned, ...] = ()


class Operations:
    """The verbs, over one store. `host` names this machine where sessions with files must stay on theirs."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        clock: Clock,
        bounds: Bounds,
        node: str,
        host: str | None,
        producer: str,
        shared_directories: Sequence[str] = (),
        new_id: Callable[[], str] = random_id,
        identify: Identify = identity_of,
    ) -> None:
        self.store = store
        self.live = live
        self._clock = clock
        self._bounds = bounds
        self._node = node
        self._host = host
        self._shared = tuple(shared_directories)
        self._producer = producer
        self._new_id = new_id
        self._identify = identify

    def _is_only_here(self, directory: str | None) -> bool:
        """Whether a session that works in that folder can go on nowhere else."""
        if not directory:
            return False
        return not any(Path(directory).is_relative_to(shared) for shared in self._shared)

    def _identity(self, directory: str | None) -> DirectoryIdentity | None:
        """Which folder that is, to be held to from now on; None: it is not there (yet), and the session's first holder
        looks again."""
        found: DirectoryIdentity | None = self._identify(directory) if directory else None
        return found

    # Sessions

    async def create(self, owner: Owner, options: SessionOptions, session_id: SessionId | None = None) -> SessionId:
        """Make a session, durable on return. One's own existing id returns that session as it is."""
        made = SessionId(self._new_id()) if session_id is None else session_id
        await self.create_if_missing(owner, options, made)
        return made

    async def create_if_missing(self, owner: Owner, options: SessionOptions, made: SessionId) -> bool:
        """Whether it was made just now."""
        self.check_id("session", made)
        self._check_options(options)
        self._check_tools(options.client_tools)
        key = Key(owner, made)
        started = SessionStarted(
            session_id=made,
            producer=self._producer,
            start_time=self._clock.now_ms(),
            model=options.model,
            system_message=options.system_message,
            working_directory=options.working_directory,
            directory_identity=options.directory_identity or self._identity(options.working_directory),
            tools=options.tools,
            client_tools=options.client_tools,
            allow=options.allow,
            dry_run=options.dry_run,
            wants_title=options.wants_title and not options.title and options.parent is None,
            parent=options.parent,
            metadata=options.metadata,
            conventions=options.conventions,
            process=self.store.process if policy_of(options.conventions).cold_resume_ends_pending_work else "",
            client_name=options.client_name,
        )
        bodies: list[Body] = [started]
        if options.settings is not None:
            bodies.append(options.settings)
        if options.title:
            bodies.append(TitleChanged(title=options.title, chosen=True))
        new = NewSession(
            host=self._host if self._is_only_here(options.working_directory) else None,
            tools=options.tools or (),
            model=row_model(options.model, _provider_in(options.settings), own_token=options.own_token),
            made_from=options.parent,
            metadata=options.metadata,
            created_at=self._clock.now_ms(),
        )
        unit = Unit(key=key, fence=None, events=self._events(bodies), creates=new, title=options.title)
        outcome = await self.store.commit(unit)
        self.check_quota(outcome)
        if not isinstance(outcome, Committed) and await self.store.row(key) is None:
            raise Conflict("session_deleted", f"The session {made} was deleted; its id is not used again.")
        return isinstance(outcome, Committed)

    def check_quota(self, outcome: Outcome) -> None:
        """Raise why a session was not made, if that is because its owner has too much already."""
        if isinstance(outcome, Rejected) and outcome.reason in typing.get_args(QuotaCode):
            raise Conflict(outcome.reason, self.store.limits.quota_sentence(outcome.reason))

    async def state(self, key: Key) -> State:
        """The session, folded: what its holder would decide on, but for images that a snapshot left in the log."""
        loaded = await self._loaded(key, FOLD_VERSION)
        state = restored(loaded.snapshot.state if loaded.snapshot else None)
        if state is None:
            loaded, state = await self._loaded(key, NO_SNAPSHOT), State()
        async for page in pages(self.store, loaded):
            fold(page, state)
        return state

    async def _loaded(self, key: Key, fold_version: int) -> Loaded:
        loaded = await self.store.load(key, fold_version=fold_version)
        if loaded is None:
            raise self._not_found(key)
        return loaded

    async def session(self, key: Key) -> Row:
        found = await self.store.row(key)
        if found is None:
            raise self._not_found(key)
        return found

    async def sessions(
        self, owner: Owner, *, limit: int = 50, after: str | None = None, text: str = "", pinned: bool | None = None
    ) -> Page:
        return await self.store.rows(owner, limit=max(1, min(limit, 200)), after=after, text=text, pinned=pinned)

    async def delete(self, key: Key) -> None:
        """Remove all of a session. What it cost stays on the books; its id is not used again."""
        if not await self.store.delete(key):
            raise self._not_found(key)
        self.live.publish(key, Changed())
        self.live.publish(key, Lost())

    async def see(self, key: Key, position: Position) -> Position:
        """Its owner has seen it up to there, or further. How far now."""
        seen = await self.store.see(key, position)
        if seen is None:
            raise self._not_found(key)
        return seen

    async def annotate(
        self, key: Key, *, pinned: bool | None = None, metadata: Mapping[str, str | None] | None = None
    ) -> None:
        """Pin it or not, and merge into its metadata: a value is set, None takes the entry out, the others stay. All of
        it or nothing; and the session is no newer for it."""
        refused = await self.store.annotate(
            key,
            pinned=pinned,
            metadata=metadata,
            max_entries=self._bounds.max_metadata_entries,
            max_characters=self._bounds.max_metadata_characters,
        )
        if refused is not None and refused.code == "session_not_found":
            raise self._not_found(key)
        if refused is not None:
            raise Invalid(refused.code, refused.message)

    async def rename(self, key: Key, title: str, *, chosen: bool = True) -> None:
        """Give it a name. One that nobody chose, but that was made up for it, may be replaced by the next."""
        self._check_size("A title", title, self._bounds.max_name_characters)
        await self._record(key, TitleChanged(title=title, chosen=chosen))

    async def suggest_title(self, key: Key, title: str) -> bool:
        """Give it a name unless a person chose one. Whether it has it now."""
        self._check_size("A title", title, self._bounds.max_name_characters)

        async def suggested(state: State) -> list[Body]:
            return [] if state.title_chosen else [TitleChanged(title=title)]

        return await self.change(key, suggested) is not None

    async def change(self, key: Key, change: Change, *, held: Held | None = None) -> Event | None:
        """Append the records that `change` makes of the session's state, provided that the log still ends where that
        state does; otherwise fold what came in between and ask again. Of two changes made at once neither is lost.

        Returns the last record, or None when there was nothing to change. Raises `Conflict` when other writers were
        faster every time. A crash leaves all of the records or none."""
        state = await self.state(key)
        for _ in range(CHANGE_TRIES):
            bodies = await change(state)
            if not bodies:
                return None
            written = await self._checked(key, bodies, held)
            last = await self._append(key, written, provider=state.provider, supposes_head=state.head)
            if last is not None:
                await self._take_granted(key, written, held)
                return last
            while missed := await self.store.events_after(key, state.head, limit=PAGE_EVENTS, max_bytes=PAGE_BYTES):
                fold(missed, state)
        raise Conflict("changed_meanwhile", "The session kept changing while this was written. Try again.")

    async def move(
        self, key: Key, directory: str, identity: DirectoryIdentity | None = None, *, held: Held | None = None
    ) -> None:
        """Let the session work in that folder from its next step on: in another one, or in what has taken the place of
        the one that it had. `identity` says which folder that is, where a surface has looked already; `held`, how much
        of what was granted there holds for the one who moves it."""

        async def moved(state: State) -> list[Body]:
            if directory == state.working_directory and is_still(state.directory_identity, directory):
                return []
            chosen = UNSET if identity is None else identity
            return [SettingsChanged(working_directory=directory, directory_identity=chosen)]

        await self.change(key, moved, held=held)

    async def change_model(self, key: Key, model: str) -> None:
        """From the next step on."""
        self._check_model(model)

        async def changed(state: State) -> list[Body]:
            return [ModelChanged(new_model=model, previous_model=state.model)]

        await self.change(key, changed)

    async def change_mode(self, key: Key, mode: Mode, *, expected: str | None = None) -> bool:
        """Where another mode is expected than the session has, nothing changes. Whether it has the mode now."""
        is_as_expected = True

        async def changed(state: State) -> list[Body]:
            nonlocal is_as_expected
            is_as_expected = expected is None or expected == state.mode
            is_new = is_as_expected and state.mode != mode
            return [ModeChanged(new_mode=mode, previous_mode=state.mode)] if is_new else []

        await self.change(key, changed)
        return is_as_expected

    async def resumed(self, key: Key) -> None:
        """Note that a client came back."""
        row = await self.session(key)
        await self._record(key, SessionResumed(resume_time=self._clock.now_ms(), event_count=row.head))

    async def record(self, key: Key, *bodies: Body) -> Event:
        """Append records that say what was done beside the conversation; the last of them. Records that follow from
        the session's state go through `change`."""
        written = await self._checked(key, bodies)
        last = await self._record(key, *written)
        await self._take_granted(key, written)
        return last

    async def _checked(self, key: Key, bodies: Sequence[Body], held: Held | None = None) -> list[Body]:
        written: list[Body] = []
        for body in bodies:
            if isinstance(body, SettingsChanged):
                self.check_settings(body)
                body = await self._with_identity(key, await self._with_place_rules(key, body, held))
            written.append(body)
        return written

    async def _with_identity(self, key: Key, settings: SettingsChanged) -> SettingsChanged:
        """A session that moves is held to the folder that it moves to. One that runs on another host sees another
        folder under that path: there its holder looks."""
        directory = settings.working_directory
        if directory is UNSET or settings.directory_identity is not UNSET:
            return settings
        row = await self.session(key)
        is_here = row.host in (None, self._host)
        return msgspec.structs.replace(settings, directory_identity=self._identity(directory) if is_here else None)

    async def _with_place_rules(self, key: Key, settings: SettingsChanged, held: Held | None) -> SettingsChanged:
        """A session that moves is allowed what people granted there, and no longer what they granted where it was."""
        if not isinstance(settings.working_directory, str):
            return settings
        rules = await self.store.granted(key.owner, settings.working_directory)
        return msgspec.structs.replace(settings, place_rules=rules if held is None else held(rules))

    async def _take_granted(self, key: Key, written: Sequence[Body], held: Held | None = None) -> None:
        """After a move, look for grants once more: a grant that was stored after the move read them, and looked at the
        session before the move was written, is seen by neither."""
        if not any(isinstance(body, SettingsChanged) and isinstance(body.working_directory, str) for body in written):
            return

        async def missed(state: State) -> list[Body]:
            rules = await self.store.granted(key.owner, state.working_directory or "")
            return _with_rules(state, rules if held is None else held(rules))

        await self.change(key, missed)

    # Sending

    async def send(
        self,
        key: Key,
        text: str,
        *,
        message_id: MessageId | None = None,
        delivery: DeliveryChoice = "steer",
        added: str = "",
        unattended: bool = False,
        images: tuple[Image, ...] = (),
        attachments: tuple[dict[str, Any], ...] = (),
        agent_mode: str = "",
        model_text: str = "",
        context: PageContext | None = None,
        model: str | None = None,
        thinking: int | None = None,
        only_if_idle: bool = False,
    ) -> Sent:
        """Accept a message. The same id again gives the same receipt, and never a second run. `model` and `thinking`
        (tokens, 0 is off) are for its turn alone. `only_if_idle` refuses it as the delivery `reject` does."""
        made = MessageId(self._new_id()) if message_id is None else message_id
        self.check_id("message", made)
        self._check_text(text)
        page = context.as_text() if context else ""
        self._check_size("What is added to a message", added + page, self._bounds.max_instructions_characters)
        if model is not None:
            self._check_model(model)
        self._check_images(images)
        self._check_size("What the model is told", model_text, self._bounds.max_message_characters)
        item = inbox.Message(
            message_id=made,
            text=text,
            model_text=model_text,
            delivery="enqueue" if delivery == "enqueue" else "steer",
            added=added,
            unattended=unattended,
            images=images,
            attachments=attachments,
            agent_mode=agent_mode,
            context=context,
            model=model,
            thinking=thinking,
        )
        accepted = await self._put(
            key,
            item,
            f"message:{made}",
            only_if_idle=only_if_idle or delivery == "reject",
            stop_first=f"stop:before:{made}" if delivery == "interrupt" else None,
        )
        return _sent(made, accepted)

    async def check_turns(self, key: Key, message_id: MessageId) -> None:
        """Raises what `send` would, if the message starts a turn too many: for what is to be stored before it. Whoever
        sends it again is not refused."""
        limit = self.store.limits.in_flight_of(key.owner)
        row = await self.store.row(key) if limit is not None else None
        if limit is None or (row is not None and row.status != "idle"):
            return
        turns = await self.store.turns(key.owner)
        if turns.in_flight >= limit and await self.store.receipt(key, f"message:{message_id}") is None:
            raise Conflict("too_many_turns", turns.refusal())

    async def check_storage(self, owner: Owner) -> None:
        """Raises what `send` would, if the owner's logs are full: for records that are not part of a message."""
        limits = self.store.limits
        if limits.has_quota(owner) and limits.stores_too_much(await self.store.stored(owner)):
            raise Conflict("storage_full", limits.quota_sentence("storage_full"))

    async def send_instead(self, key: Key, said: UserMessage, *, replaces: Position, kept: Position) -> Sent:
        """Take back what was said after `kept` and have this message answered in its place: accepted as one, and done
        in one unit. A turn that runs is stopped first, and messages that wait are taken out and returned.

        `replaces` is where the message that is taken back stands. The same again, as long as that is not done, is the
        same receipt; anything else replaces what was to replace it."""
        self.check_id("message", said.message_id)
        self._check_text(said.content)
        item = inbox.Message(
            message_id=said.message_id,
            text=said.content,
            delivery="enqueue",
            model_text=said.model_text,
            added=said.added,
            images=said.images,
            attachments=said.attachments,
            agent_mode=said.agent_mode,
            model=said.model,
            thinking=said.thinking,
            rewinds_to=kept,
        )
        for attempt in itertools.count():
            item_key = f"instead:{said.message_id}@{replaces}.{attempt}"
            found = await self.store.receipt(key, item_key)
            if found is not None and (found.item != item or found.state in ("removed", "refused")):
                continue  # Used up by one that was taken out again, or that this one takes out.
            try:
                accepted = await self._put(key, item, item_key, stop_first=f"stop:before:{item_key}")
            except Conflict as error:
                if error.code != "id_reused":
                    raise
                continue  # Another came in between.
            return _sent(said.message_id, accepted)
        raise AssertionError("a key is found")

    async def receipt(self, key: Key, message_id: MessageId) -> Sent:
        found = await self.store.receipt(key, f"message:{message_id}")
        if found is None:
            raise NotFound("message_not_found", f"There is no message {message_id} in this session.")
        return _sent(message_id, Accepted(found, duplicate=True))

    async def queue(self, key: Key) -> tuple[InboxItem, ...]:
        """The messages that wait, in order."""
        await self.session(key)
        waiting = await self.store.waiting_items(key)
        return tuple(item for item in waiting if isinstance(item.item, inbox.Message))

    async def edit_queued(self, key: Key, message_id: MessageId, text: str) -> None:
        self._check_text(text)
        self._queue_changed(key, message_id, await self.store.edit_item(key, f"message:{message_id}", text=text))

    async def remove_queued(self, key: Key, message_id: MessageId) -> None:
        self._queue_changed(key, message_id, await self.store.remove_item(key, f"message:{message_id}"))

    async def reorder_queue(self, key: Key, message_ids: Sequence[MessageId]) -> None:
        done = await self.store.reorder_items(key, [f"message:{found}" for found in message_ids])
        if not done:
            raise Conflict("queue_changed", "The queue is no longer what it was. Read it again, then reorder it.")
        self.live.publish(key, Changed(queue=True))

    # Stopping and answering

    async def stop(
        self,
        key: Key,
        *,
        stop_id: str | None = None,
        keep_queued: bool = False,
        cause: StopCause = "stopped",
        meant_for: TurnId | None = None,
    ) -> Stopped:
        """End the running turn, and no other: if it is not the one that it was `meant_for`, nothing is stopped or
        taken back. Otherwise messages that wait come back, unless they are to be kept."""
        made = self._new_id() if stop_id is None else stop_id
        self.check_id("stop", made)
        item = inbox.Stop(stop_id=made, keep_queued=keep_queued, cause=cause, meant_for=meant_for)
        accepted = await self._put(key, item, f"stop:{made}")
        said = accepted.item.outcome if accepted.item.state == "promoted" else "stopping"
        return Stopped(
            stop_id=made,
            outcome=msgspec.convert(said, _STOP_OUTCOME),
            returned=_texts(accepted.removed),
            returned_messages=_returned(accepted.removed),
        )

    async def rewind(self, key: Key, kept: Position, *, rewind_id: str | None = None) -> None:
        """Let the conversation go on from there as if nothing after it had been said. Returns when it does. The same id
        again gets the same receipt."""
        made = self._new_id() if rewind_id is None else rewind_id
        self.check_id("rewind", made)
        item_key = f"rewind:{made}"
        position = (await self.session(key)).head
        accepted = await self._put(key, inbox.Rewind(rewind_id=made, kept=kept), item_key)
        receipt: InboxItem | None = accepted.item
        async with aclosing(self.read(key, Cursor(position)).follow()) as readings:
            while receipt is not None and receipt.state == "accepted":
                await anext(readings)
                receipt = await self.store.receipt(key, item_key)
        if receipt is None or receipt.state == "refused":
            raise Conflict("busy", "The session is busy. Wait until it is idle, then try again.")

    async def requests(self, key: Key) -> tuple[RequestRow, ...]:
        await self.session(key)
        return await self.store.requests(key)

    async def decide_permission(
        self,
        key: Key,
        request_id: RequestId,
        decision: Decision,
        *,
        feedback: str = "",
        rules: tuple[str, ...] = (),
        place: str | None = None,
        answer_id: str | None = None,
        answered_by: str = "",
    ) -> Answered:
        """`place`: where it is to be allowed for later sessions as well, which the caller is to `grant` afterwards.
        It is a part of what was answered: under the same id a wider answer is another one."""
        self._check_rules(rules)
        content = PermissionAnswer(decision=decision, feedback=feedback, rules=rules, place=place)
        return await self._answer(key, request_id, content, answer_id, answered_by)

    async def grant(self, key: Key, place: str, rules: tuple[str, ...], *, granted_by: str = "") -> None:
        """Allow for all sessions that its owner starts in that place later (the empty one is everywhere), and for this
        one as long as it works there. Safe to repeat; a crash in between leaves this one to ask again."""
        self._check_rules(rules)
        origin = GrantOrigin(key.session, granted_by, self._clock.now_ms())
        await self.store.grant(key.owner, place, rules, origin=origin)

        async def granted(state: State) -> list[Body]:
            return _with_rules(state, rules) if place in ("", state.working_directory or "") else []

        await self.change(key, granted)

    async def allow_all(self, key: Key, *, enabled: bool) -> None:
        """Allow whatever the session asks from now on, and what it is asking now; or let it ask again. The rules that
        it was given one by one stay."""

        async def allowed(state: State) -> list[Body]:
            others = tuple(rule for rule in state.allow if rule != EVERY_CALL)
            wanted = (*others, EVERY_CALL) if enabled else others
            return [SettingsChanged(allow=wanted)] if wanted != tuple(state.allow) else []

        await self.change(key, allowed)
        for request in await self.requests(key) if enabled else ():
            if request.kind == "permission":
                with suppress(OperationError):  # It was answered meanwhile, or the turn is over.
                    await self.decide_permission(key, request.request_id, "approved")

    async def answer_tool(
        self,
        key: Key,
        request_id: RequestId,
        content: str,
        *,
        success: bool = True,
        error: ToolError | None = None,
        images: tuple[Image, ...] = (),
        answer_id: str | None = None,
        answered_by: str = "",
    ) -> Answered:
        self._check_images(images)
        given = ToolAnswer(content=content, success=success, error=error, images=images)
        return await self._answer(key, request_id, given, answer_id, answered_by)

    async def answer_question(
        self,
        key: Key,
        request_id: RequestId,
        answer: str,
        *,
        was_freeform: bool = True,
        failed: bool = False,
        answer_id: str | None = None,
        answered_by: str = "",
    ) -> Answered:
        """`failed`: nobody can be asked, and `answer` says why."""
        content = QuestionAnswer(answer=answer, was_freeform=was_freeform, failed=failed)
        return await self._answer(key, request_id, content, answer_id, answered_by)

    # Reading

    def read(self, key: Key, cursor: Cursor | None = None, *, heard_since: Subscription | None = None) -> Reader:
        return Reader(self.store, self.live, key, cursor, heard_since=heard_since)

    async def usage(self, owner: Owner, session: SessionId | None = None) -> tuple[LedgerEntry, ...]:
        return await self.store.ledger(owner, session)

    # Presence

    async def attach(
        self,
        key: Key,
        attachment_id: str,
        *,
        tools: tuple[str, ...] = (),
        capabilities: tuple[str, ...] = (),
        declined: tuple[RequestId, ...] = (),
        ttl_seconds: float = 60,
    ) -> tuple[Attachment, ...]:
        """Say that a client is present, what it can run and answer, and what it declined before. To be repeated before
        the time is over. The others that are."""
        self.check_id("attachment", attachment_id)
        found = Attachment(
            attachment_id=attachment_id,
            key=key,
            node=self._node,
            tools=tools,
            capabilities=capabilities,
            declined=declined,
        )
        others = await self.store.attach(found, ttl_seconds=ttl_seconds)
        if isinstance(others, Clash):
            raise Conflict(
                "tool_clash", f"External tool name clash: {others.tool} already registered by another connection"
            )
        return others

    async def detach(self, key: Key, attachment_id: str) -> None:
        await self.store.detach(key, attachment_id)

    # What they have in common

    async def _answer(
        self,
        key: Key,
        request_id: RequestId,
        content: PermissionAnswer | ToolAnswer | QuestionAnswer,
        answer_id: str | None,
        answered_by: str,
    ) -> Answered:
        made = self._new_id() if answer_id is None else answer_id
        self.check_id("answer", made)
        self._check_answer(content)
        self._check_size("A name", answered_by, self._bounds.max_name_characters)
        await self._check_kind(key, request_id, _CONTENT_KIND[type(content)])
        item = inbox.Answer(request_id=request_id, answer_id=made, content=content, answered_by=answered_by)
        accepted = await self._put(key, item, answer_key(request_id))
        return Answered(request_id=request_id, answer_id=made, duplicate=accepted.duplicate)

    async def _check_kind(self, key: Key, request_id: RequestId, kind: RequestKind) -> None:
        """Only while it is open: a closed one is refused by the store, which knows how it ended."""
        for found in await self.store.requests(key):
            if found.request_id == request_id and found.kind != kind:
                raise Invalid("wrong_answer", f"The request {request_id} is a {found.kind}; this answers a {kind}.")

    async def _put(
        self,
        key: Key,
        item: inbox.Item,
        item_key: str,
        *,
        only_if_idle: bool = False,
        stop_first: str | None = None,
    ) -> Accepted:
        """Have an item accepted, and say so to whoever listens; raises why not."""
        putting = self.store.put(
            key,
            item,
            item_key=item_key,
            queue_limit=self._bounds.max_waiting_messages,
            only_if_idle=only_if_idle,
            stop_first=stop_first,
        )
        self.live.announce()
        outcome = await putting
        if isinstance(outcome, Refused):
            if outcome.code == "session_not_found":
                raise self._not_found(key)
            kind = NotFound if outcome.code == "request_not_found" else Conflict
            raise kind(outcome.code, outcome.message)
        self.live.publish(key, Changed(tail=outcome.item.sequence, queue=bool(outcome.removed)))
        return outcome

    async def _record(self, key: Key, *bodies: Body) -> Event:
        placed = await self._append(key, bodies)
        assert placed is not None, "it supposes nothing"
        return placed

    async def _append(
        self,
        key: Key,
        bodies: Sequence[Body],
        *,
        provider: Provider | None = None,
        supposes_head: Position | None = None,
    ) -> Event | None:
        """Append records, with what the session's row says of them; the last of them. None: the head is not as
        supposed. `provider` is the one that the session's state has, where that is known."""
        events = self._events(bodies)
        title = next((body.title for body in reversed(bodies) if isinstance(body, TitleChanged)), None)
        model = _model_of_row(bodies, provider)
        unit = Unit(key=key, fence=None, events=events, title=title, model=model, supposes_head=supposes_head)
        outcome = await self.store.commit(unit)
        if isinstance(outcome, Rejected) and outcome.reason == HEAD_MOVED:
            return None
        if not isinstance(outcome, Committed):
            raise self._not_found(key)
        first = outcome.head - len(events) + 1
        placed = tuple(event.at(Position(first + index)) for index, event in enumerate(events))
        self.live.publish(key, Advanced(placed))
        return placed[-1]

    def _events(self, bodies: Sequence[Body]) -> tuple[Event, ...]:
        now = self._clock.now_ms()
        return tuple(Event(Position(0), EventId(self._new_id()), now, body) for body in bodies)

    def _queue_changed(self, key: Key, message_id: MessageId, done: bool) -> None:
        if not done:
            raise NotFound("message_not_queued", f"The message {message_id} is not waiting (any more).")
        self.live.publish(key, Changed(queue=True))

    def check_id(self, what: str, found: str) -> None:
        """Raises `Invalid` for an id that a client may not choose, before anything is made under it."""
        limit = self._bounds.max_id_characters
        if len(found) > limit or not may_be_chosen(found):
            article = "An" if what[0] in "aeiou" else "A"
            raise Invalid("id_invalid", f"{article} {what} id has 1 to {limit} characters: {CHOSEN_ID_RULE}.")

    def _check_text(self, text: str) -> None:
        if not text.strip():
            raise Invalid("message_empty", "A message needs some text.")
        if len(text) > self._bounds.max_message_characters:
            limit = self._bounds.max_message_characters
            raise Invalid("message_too_long", f"A message has at most {limit:,} characters; this has {len(text):,}.")

    def _check_images(self, images: Sequence[Image]) -> None:
        size, limit = sum(len(image.data) for image in images), self._bounds.max_attachment_bytes
        if size > limit:
            raise Invalid("attachment_too_large", f"Pictures have at most {limit:,} bytes together; these {size:,}.")

    def check_settings(self, settings: SettingsChanged) -> None:
        if settings.allow is not UNSET:
            self._check_rules(settings.allow)
        if settings.client_tools is not UNSET:
            self._check_tools(settings.client_tools)
        for what, name in (("A reasoning effort", settings.reasoning_effort), ("A name", settings.client_name)):
            if isinstance(name, str):
                self._check_size(what, name, self._bounds.max_name_characters)
        if settings.system_message is not UNSET:
            limit = self._bounds.max_instructions_characters
            self._check_size("A system message", settings.system_message or "", limit)

    def _check_tools(self, tools: Sequence[ClientTool]) -> None:
        for found in tools:
            if not _TOOL_NAME.fullmatch(found.name):
                raise Invalid(
                    "tool_name_invalid", "A tool's name has 1 to 64 characters: letters, digits, _ and - are allowed."
                )
            try:
                msgspec.msgpack.encode(found.parameters)
            except (OverflowError, RecursionError, UnicodeEncodeError) as error:
                raise Invalid("tool_invalid", f"The parameters of {found.name} can't be kept: {error}.") from error
            if found.name in typing.get_args(PermissionKind):
                # Approving it for the session would grant the kind of that name to every tool.
                raise Invalid("tool_name_reserved", f"{found.name} is a kind of permission; a tool needs another name.")

    def _check_options(self, options: SessionOptions) -> None:
        self._check_rules(options.allow)
        if options.settings is not None:
            self.check_settings(options.settings)
        self._check_size("A title", options.title or "", self._bounds.max_name_characters)
        self._check_size("A name", options.client_name, self._bounds.max_name_characters)
        if options.model is not None:
            self._check_model(options.model)
        self._check_size("A system message", options.system_message or "", self._bounds.max_instructions_characters)
        entries, characters = self._bounds.max_metadata_entries, self._bounds.max_metadata_characters
        if refused := too_large(options.metadata, max_entries=entries, max_characters=characters):
            raise Invalid(refused.code, refused.message)

    def _check_model(self, model: str) -> None:
        limit = self._bounds.max_name_characters
        if not model or len(model) > limit or not model.isprintable():
            raise Invalid("model_invalid", f"A model's name has 1 to {limit} printable characters.")

    def _check_size(self, what: str, text: str, limit: int) -> None:
        if len(text) > limit:
            raise Invalid("too_long", f"{what} has at most {limit:,} characters; this has {len(text):,}.")

    def _check_answer(self, content: PermissionAnswer | ToolAnswer | QuestionAnswer) -> None:
        """An answer is bounded like the result of any tool."""
        limit, size = self._bounds.max_tool_result_bytes, _answer_bytes(content)
        images = sum(len(image.data) for image in content.images) if isinstance(content, ToolAnswer) else 0
        limit = limit if images else min(limit, MAX_ANSWER_BYTES)
        if size > limit or size - images > MAX_ANSWER_BYTES:
            raise Invalid("answer_too_large", f"An answer has at most {limit:,} bytes; this one has {size:,}.")

    def _check_rules(self, rules: Sequence[str]) -> None:
        for rule in rules:
            try:
                check_rule(rule)
            except BadRule as error:
                raise Invalid(error.code, str(error)) from error

    def _not_found(self, key: Key) -> OperationError:
        return NotFound("session_not_found", f"There is no session {key.session}.")


def _answer_bytes(content: PermissionAnswer | ToolAnswer | QuestionAnswer) -> int:
    match content:
        case PermissionAnswer():
            return codec.size_of(content.feedback)
        case QuestionAnswer():
            return codec.size_of(content.answer)
        case ToolAnswer():
            return codec.size_of(content.content) + sum(len(image.data) for image in content.images)


_STOP_OUTCOME = Literal["stopping", "stopped", "dequeued", "nothing_running", "turn_ended_before"]


def _sent(message_id: MessageId, accepted: Accepted) -> Sent:
    return Sent(
        message_id=message_id,
        item_key=accepted.item.key,
        state=accepted.item.state,
        delivery=accepted.item.outcome,
        duplicate=accepted.duplicate,
        while_running=accepted.item.while_running,
        waits_for_slot=accepted.waits_for_slot,
        head=None if accepted.duplicate else accepted.head,
        found_idle=accepted.found_idle,
        returned=_texts(accepted.removed),
        returned_messages=_returned(accepted.removed),
    )


def _texts(items: tuple[InboxItem, ...]) -> tuple[str, ...]:
    return tuple(item.item.text for item in items if isinstance(item.item, inbox.Message))


def _returned(items: tuple[InboxItem, ...]) -> tuple[Returned, ...]:
    return tuple(returned(item.item) for item in items if isinstance(item.item, inbox.Message))


def returned(sent: inbox.Message) -> Returned:
    """A message as its sender gets it back."""
    return Returned(
        message_id=sent.message_id,
        text=sent.text,
        context=sent.context,
        mode=sent.agent_mode,
        model=sent.model,
        thinking=sent.thinking,
    )


def _provider_in(settings: SettingsChanged | None) -> Provider | None:
    return settings.provider if settings is not None and isinstance(settings.provider, Provider) else None


def _model_of_row(bodies: Sequence[Body], provider: Provider | None) -> str | None:
    """What the session's row says of its model after these records; None: the same as before."""
    found: str | None = None
    for body in bodies:
        if isinstance(body, SettingsChanged) and (brought := _provider_in(body)) is not None:
            provider, found = brought, OWN_MODEL
        elif isinstance(body, SettingsChanged) and body.provider is None:
            provider = None
        elif isinstance(body, ModelChanged):
            found = row_model(body.new_model, provider)
    return found


def _with_rules(state: State, rules: Sequence[str]) -> list[Body]:
    """The record by which these rules hold as well where the session works; none if they do."""
    held = tuple(sorted({*state.place_rules, *rules}))
    return [SettingsChanged(place_rules=held)] if set(held) != set(state.place_rules) else []
