"""The AI SDK surface: a turn as the UI-message stream that its clients read, and what they send to have one.

The answer to what was sent is one leg of the turn, and follows from the log alone: the same sent again, also at the
same moment, is told the same, and never runs twice. Who asks for the turn's stream is told all of it. Whoever hangs up
has stopped nothing.
"""

import asyncio
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.events.event import Event
from holdfast.events.ids import Key, MessageId, Position, SessionId
from holdfast.events.message import AssistantMessage, ToolCallBlock, UserMessage
from holdfast.events.session import ClientTool, SettingsChanged
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import TurnStarted
from holdfast.server.ai_sdk.message import GrowingConversation, Message
from holdfast.server.ai_sdk.sent import Meant, Words
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.http.chat_bodies import BODY_BOUNDS, MAX_BODY_BYTES, ChatBody, ChatQuery, HistoryQuery, Queued
from holdfast.server.http.chat_request import ChatRequest
from holdfast.server.http.endpoint import Endpoint, Handler, routes_of
from holdfast.server.http.identity import Identity
from holdfast.server.http.messages import LONG_PAGE_CHARACTERS
from holdfast.server.http.service import Service
from holdfast.server.http.visible import backwards
from holdfast.server.http.wire import answer, nothing, read_body, read_query
from holdfast.server.operations import SessionOptions
from holdfast.server.presence import Arrival, Presence

SESSION: Final = "/v1/sessions/{session_id}/stream"
CHAT: Final = "/v1/chat"
CHAT_SESSION: Final = "/v1/chat/{session_id}"

STREAM: Final = "text/event-stream"


EVENTS_AT_ONCE: Final = 200


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What was said, oldest first. An answer that the turn's stream would replay is left out: it comes with that."""

    id: str
    messages: tuple[Message, ...]
    before: int | None
    """Ask for older messages with it. None: these are the first."""


def routes(service: Service) -> list[Route]:
    return routes_of(Chat(service).endpoints())


class Chat:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._operations = service.operations
        self._presence = Presence(service.operations, service.operations.store, service.clock)

    def endpoints(self) -> list[Endpoint]:
        return [
            self._sending(SESSION, self.send_to_session, "Send a message, or answers, and read what comes of it"),
            self._sending(CHAT, self.send_to_chat, "The same; the session is named in the body, and made if missing"),
            self._reading(SESSION, self.replay_session, "The turn's stream from its start"),
            self._reading(f"{CHAT_SESSION}/stream", self.replay_chat, "The same; of a missing session, nothing"),
            Endpoint(
                method="GET",
                path=CHAT_SESSION,
                handler=self.load,
                summary="What was said, as the client's own messages",
                query=HistoryQuery,
                answers={200: Conversation},
            ),
        ]

    def _sending(self, path: str, handler: Handler, summary: str) -> Endpoint:
        return Endpoint(
            method="POST",
            path=path,
            handler=handler,
            summary=summary,
            query=ChatQuery,
            body=ChatBody,
            answers={200: None, 202: Queued},
            media_type=STREAM,
        )

    def _reading(self, path: str, handler: Handler, summary: str) -> Endpoint:
        return Endpoint(
            method="GET",
            path=path,
            handler=handler,
            summary=summary,
            query=ChatQuery,
            answers={200: None, 204: None},
            media_type=STREAM,
        )

    # Sending

    async def send_to_session(self, request: Request) -> Response:
        body = await self._body(request)
        return await self._take(request, self._service.key(request), body, self._meant(body))

    async def send_to_chat(self, request: Request) -> Response:
        body = await self._body(request)
        if body.id is None:
            raise Invalid("id_missing", "Name the session: `id` in the body.")
        self._operations.check_id("session", body.id)
        identity = self._service.identity(request)
        key = Key(identity.owner, SessionId(body.id))
        meant = self._meant(body)
        try:
            return await self._take(request, key, body, meant)
        except NotFound as error:
            if error.code != "session_not_found" or not isinstance(meant, Words):
                raise
        await self._operations.check_turns(key, MessageId(meant.message_id))
        # A crash right after this leaves an empty session, and the client to send again under the same id.
        await self._operations.create_if_missing(identity.owner, self._options(identity, body), key.session)
        return await self._take(request, key, body, meant)

    def _meant(self, body: ChatBody) -> Meant:
        """What the client means by it. The id of a new message is checked before anything is written for it."""
        found = body.meant()
        if isinstance(found, Words):
            self._operations.check_id("message", found.message_id)
        return found

    async def _body(self, request: Request) -> ChatBody:
        self._service.streams.check(self._service.identity(request))
        return await read_body(request, ChatBody, limit=MAX_BODY_BYTES, bounds=BODY_BOUNDS)

    async def _take(self, request: Request, key: Key, body: ChatBody, meant: Meant) -> Response:
        asked = ChatRequest(self._service, request, key)
        await self._service.check_use(self._service.identity(request), key)
        if body.tools is not None and isinstance(meant, Words):
            await self._operations.check_turns(key, MessageId(meant.message_id))
            await self._offer(key, body.client_tools())
        return await asked.take(body, meant)

    async def _offer(self, key: Key, tools: tuple[ClientTool, ...]) -> None:
        """Those of clients that are attached otherwise stay."""
        await self._presence.offer(key, Arrival(attachment_id="", tools=tools))

    def _options(self, identity: Identity, body: ChatBody) -> SessionOptions:
        settings = self._service.settings
        return SessionOptions(
            model=settings.model,
            working_directory=settings.directory,
            tools=self._service.policy(identity).chosen_tools(None, settings.tools),
            client_tools=body.client_tools(),
            client_name="http",
            wants_title=settings.titles == "model",
            settings=SettingsChanged(thinking=settings.thinking) if settings.thinking is not None else None,
        )

    # Reading

    async def replay_session(self, request: Request) -> Response:
        return await ChatRequest(self._service, request, self._service.key(request)).replay()

    async def replay_chat(self, request: Request) -> Response:
        """A client asks before anything was sent, too."""
        key = self._service.key(request)
        if await self._operations.store.row(key) is None:
            return nothing()
        return await ChatRequest(self._service, request, key).replay()

    async def load(self, request: Request) -> Response:
        key = self._service.key(request)
        asked = read_query(request, HistoryQuery)
        row = await self._operations.store.row(key)
        replayed = await self._service.replayed_turn(key)
        events, before = await self._last_turns(key, row.head, asked) if row is not None else ([], None)
        said = await _conversation(events)
        messages = tuple(found for found in said if replayed is None or found.id != replayed.turn_id)
        return answer(Conversation(id=key.session, messages=messages, before=before))

    async def _last_turns(self, key: Key, head: Position, asked: HistoryQuery) -> tuple[list[Event], int | None]:
        """So many turns, and where the first of them starts, unless it is the first of all."""
        turns = size = 0
        found: list[Event] = []
        async with aclosing(backwards(self._operations.store, key, head)) as events:
            async for event in events:
                if asked.before is not None and event.position >= asked.before:
                    continue
                if turns == asked.turns or (turns and size > LONG_PAGE_CHARACTERS):
                    first = found[-1].position
                    return found[::-1], first
                found.append(_shortened(event) if size > LONG_PAGE_CHARACTERS else event)
                size += _characters(event)
                turns += isinstance(event.body, TurnStarted)
        return found[::-1], None


async def _conversation(events: list[Event]) -> list[Message]:
    """What was said in these events; others get turns meanwhile."""
    growing = GrowingConversation()
    for number, event in enumerate(events):
        growing.take(event)
        if number % EVENTS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return growing.messages()


def _characters(event: Event) -> int:
    match event.body:
        case ToolCompleted(content=content, details=details):
            return len(content) + len(details)
        case UserMessage(content=content):
            return len(content)
        case AssistantMessage(blocks=blocks):
            return sum(len(found.arguments if isinstance(found, ToolCallBlock) else found.text) for found in blocks)
        case _:
            return 0


def _shortened(event: Event) -> Event:
    """A result as the model was sent it, in a turn whose results are too long together."""
    if not isinstance(event.body, ToolCompleted) or event.body.preview is None:
        return event
    body = msgspec.structs.replace(event.body, content=event.body.preview)
    return Event(event.position, event.id, event.time, body)
