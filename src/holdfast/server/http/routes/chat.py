"""The routes of the AI SDK: a turn as the UI-message stream that its clients read.

The response to a request is one leg of the turn and follows from the log alone: the same request again, also at the
same moment, gets the same stream and never runs a second turn. A client that disconnects stops nothing.
"""

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

import msgspec
from starlette.responses import Response

from holdfast.events.ids import Key, MessageId, Position, SessionId
from holdfast.events.session import SettingsChanged
from holdfast.protocol.message import DeliveryChoice, Sent
from holdfast.server.ai_sdk.bodies import (
    BODY_BOUNDS,
    MAX_BODY_BYTES,
    ChatBody,
    ChatQuery,
    HistoryQuery,
    QueuedNotice,
)
from holdfast.server.ai_sdk.exchange import ChatAnswer, Exchange
from holdfast.server.ai_sdk.file_parts import FilePart, bytes_in, file_id_in, made_id, name_of
from holdfast.server.ai_sdk.history import ConversationView, last_messages
from holdfast.server.ai_sdk.intent import ChatText, Intent
from holdfast.server.ai_sdk.streams import frames, whole_turn_chunks
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.streams import EventStream
from holdfast.server.http.wire import json_response, no_content
from holdfast.server.message_options import MessageChoice
from holdfast.server.operations import SessionOptions
from holdfast.server.presence import Arrival

STREAM: Final = "text/event-stream"

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}


# Sending


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/stream",
    summary="Send a message, or answers, and read the turn as a stream",
    query=ChatQuery,
    body=ChatBody,
    results={200: None, 202: QueuedNotice},
    media_type=STREAM,
)
async def send_to_session(call: HttpCall) -> Response:
    body = await _body(call)
    return await _answer(call, call.key, body, _intent(call, body))


@endpoint(
    "POST",
    "/v1/chat",
    summary="The same; the body names the session, which is created if it is missing",
    query=ChatQuery,
    body=ChatBody,
    results={200: None, 202: QueuedNotice},
    media_type=STREAM,
)
async def send_to_chat(call: HttpCall) -> Response:
    body = await _body(call)
    if body.id is None:
        raise Invalid("id_missing", "Name the session: `id` in the body.")
    call.operations.check_id("session", body.id)
    key = Key(call.identity.owner, SessionId(body.id))
    intent = _intent(call, body)
    try:
        return await _answer(call, key, body, intent)
    except NotFound as error:
        if error.code != "session_not_found" or not isinstance(intent, ChatText):
            raise
    await call.operations.check_turns(key, MessageId(intent.message_id))
    # A crash right after this leaves an empty session, and the client to send again under the same id.
    await call.operations.create_if_missing(key.owner, _options(call, body), key.session)
    return await _answer(call, key, body, intent)


async def _body(call: HttpCall) -> ChatBody:
    call.service.streams.check(call.identity)
    return await call.body(ChatBody, limit=MAX_BODY_BYTES, bounds=BODY_BOUNDS)


def _intent(call: HttpCall, body: ChatBody) -> Intent:
    """The intent of the request. The id of a new message is checked before anything is stored under it."""
    intent = body.intent()
    if isinstance(intent, ChatText):
        call.operations.check_id("message", intent.message_id)
    return intent


async def _answer(call: HttpCall, key: Key, body: ChatBody, intent: Intent) -> Response:
    async def send(text: str, *, delivery: DeliveryChoice, **message: Any) -> Sent:
        with call.service.rates.reserve(key.owner, delivery) as slot:
            return slot.count(
                await call.operations.send(
                    key, text, delivery=delivery, only_if_idle=not slot.is_free, bounds=call.bounds, **message
                )
            )

    exchange = Exchange(
        call.operations,
        key,
        release=call.query(ChatQuery).known(),
        delivery=body.delivery,
        send=send,
        choose=partial(_choice, call, key, body, intent),
        answered_by=call.identity.name,
        bounds=call.bounds,
        max_waiting_messages=call.service.bounds.max_waiting_messages,
    )
    await call.check_use(key)
    if body.tools is not None and isinstance(intent, ChatText):
        await call.operations.check_turns(key, MessageId(intent.message_id))
        # The tools of clients that are attached stay on offer.
        await call.service.presence.offer(key, Arrival(attachment_id="", tools=body.client_tools()))
    return _response(call, await exchange.answer(intent))


async def _choice(call: HttpCall, key: Key, body: ChatBody, intent: Intent) -> MessageChoice:
    """The options of the message, with the files of its parts. The same request again makes the same files."""
    choice = await call.message_choice(key, body)
    if not isinstance(intent, ChatText) or intent.files is None:
        return choice
    # A crash after an upload leaves a file that no session uses.
    parts = [await _file_id(call, key, intent.message_id, part, n) for n, part in enumerate(intent.files, start=1)]
    return msgspec.structs.replace(choice, file_ids=(*(choice.file_ids or ()), *parts))


async def _file_id(call: HttpCall, key: Key, message_id: str, part: FilePart, number: int) -> str:
    file_id = file_id_in(part)
    if file_id is not None:
        return file_id
    data = bytes_in(part)

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield data

    row = await call.service.files.add(
        key.owner,
        name_of(part, number),
        pieces(),
        media_type=part.media_type,
        file_id=made_id(key.session, message_id, data),
    )
    return row.file_id


def _options(call: HttpCall, body: ChatBody) -> SessionOptions:
    settings = call.service.settings
    return SessionOptions(
        model=settings.model,
        working_directory=settings.directory,
        tools=call.policy.chosen_tools(None, settings.tools),
        client_tools=body.client_tools(),
        client_name="http",
        wants_title=settings.titles == "model",
        settings=SettingsChanged(thinking=settings.thinking) if settings.thinking is not None else None,
    )


def _response(call: HttpCall, answer: ChatAnswer) -> Response:
    """The answer as a response, which closes the answer's subscription when it is over."""
    close = answer.subscription.close if answer.subscription is not None else lambda: None
    try:
        if answer.queued is not None and _accepts_json(call.header("accept")):
            close()
            return json_response(answer.queued, 202)
        response = _stream(call, answer)
    except BaseException:
        close()
        raise
    response.when_over(close)
    return response


def _stream(call: HttpCall, answer: ChatAnswer) -> EventStream:
    first = answer.first if answer.queued is None else (answer.queued.chunk(),)
    return call.service.streams.respond(call.identity, frames(answer.batches, first=first), headers=HEADERS)


def _accepts_json(accept: str) -> bool:
    """Whether a client asks for JSON by name. A client that accepts anything gets a stream."""
    return any(kind.partition(";")[0].strip().lower() == "application/json" for kind in accept.split(","))


# Reading


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/stream",
    summary="Replay the turn's stream from its start",
    query=ChatQuery,
    results={200: None, 204: None},
    media_type=STREAM,
)
async def replay_session(call: HttpCall) -> Response:
    return await _replay(call)


@endpoint(
    "GET",
    "/v1/chat/{session_id}/stream",
    summary="The same; no content for a missing session",
    query=ChatQuery,
    results={200: None, 204: None},
    media_type=STREAM,
)
async def replay_chat(call: HttpCall) -> Response:
    """A client asks before it has sent anything, too."""
    if await call.operations.store.row(call.key) is None:
        return no_content()
    return await _replay(call)


async def _replay(call: HttpCall) -> Response:
    """The whole turn that runs, is about to start, or ended a moment ago."""
    release = call.query(ChatQuery).known()
    row = await call.operations.session(call.key)
    if row.turn_id is None and row.waiting_messages:
        started = Position(row.head + 1)
    else:
        turn = await call.service.replayed_turn(call.key)
        if turn is None:
            return no_content()
        started = turn.started
    return _stream(call, ChatAnswer(whole_turn_chunks(call.operations, call.key, release, started)))


@endpoint(
    "GET",
    "/v1/chat/{session_id}",
    summary="The conversation as messages of the AI SDK",
    query=HistoryQuery,
    result=ConversationView,
)
async def load(call: HttpCall) -> Response:
    query = call.query(HistoryQuery)
    store = call.operations.store
    row = await store.row(call.key)
    replayed = await call.service.replayed_turn(call.key)
    messages, before = await last_messages(store, call.key, row.head, query) if row is not None else ([], None)
    shown = tuple(message for message in messages if replayed is None or message.id != replayed.turn_id)
    return json_response(ConversationView(id=call.key.session, messages=shown, before=before))
