"""One request of an AI SDK client to a session, from what is meant by it to the answer."""

from collections.abc import Iterable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.events.ids import Key, MessageId, Position
from holdfast.events.message import UserMessage
from holdfast.live.live import Subscription
from holdfast.server.ai_sdk import chunks
from holdfast.server.ai_sdk.chunks import Chunk
from holdfast.server.ai_sdk.projection import Projection
from holdfast.server.ai_sdk.sent import Again, Answers, Meant, Words
from holdfast.server.ai_sdk.telling import Leg
from holdfast.server.ai_sdk.tool_parts import Release
from holdfast.server.errors import Conflict, NotFound
from holdfast.server.http.chat_answers import give
from holdfast.server.http.chat_bodies import ChatBody, ChatQuery, Queued
from holdfast.server.http.chat_streams import (
    Told,
    frames,
    returned_chunk,
    tell_leg,
    tell_leg_of_message,
    tell_whole,
)
from holdfast.server.http.finding import FoundMessage, find_message, find_turn, turn_taken_back
from holdfast.server.http.message_options import Chosen, chosen
from holdfast.server.http.service import Service
from holdfast.server.http.streams import EventStream
from holdfast.server.http.wire import answer, nothing, read_query
from holdfast.server.operations import Sent

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}


class ChatRequest:
    """Whatever it stores is stored before the answer begins."""

    def __init__(self, service: Service, request: Request, key: Key) -> None:
        self._service = service
        self._operations = service.operations
        self._store = service.operations.store
        self._identity = service.identity(request)
        self._key = key
        self._release: Release = 7 if read_query(request, ChatQuery).release == 7 else 6
        self._wants_json = _names_json(request.headers.get("accept", ""))

    async def take(self, body: ChatBody, meant: Meant) -> Response:
        match meant:
            case Words(is_edit=True):
                return await self._edit(body, meant)
            case Words():
                return await self._send(body, meant)
            case Again():
                return await self._answer_again(body, meant)
            case Answers():
                return await self._continue(meant)

    async def replay(self) -> Response:
        """The turn that is under way, or about to be, or ended a moment ago: all of it."""
        row = await self._operations.session(self._key)
        if row.turn_id is None and row.waiting_messages:
            return self._stream(tell_whole(self._operations, self._key, self._release, Position(row.head + 1)))
        turn = await self._service.replayed_turn(self._key)
        if turn is None:
            return nothing()
        return self._stream(tell_whole(self._operations, self._key, self._release, turn.started))

    # Words

    async def _send(self, body: ChatBody, words: Words) -> Response:
        """Who listens before the message is stored hears all that comes of it, and need not look it up."""
        hearing = self._operations.live.subscribe(self._key)
        try:
            response = await self._sent(body, words, hearing)
        except BaseException:
            hearing.close()
            raise
        if isinstance(response, EventStream):
            response.when_over(hearing.close)
        else:
            hearing.close()
        return response

    async def _sent(self, body: ChatBody, words: Words, hearing: Subscription) -> Response:
        options = await self._chosen(body)
        sent = await self._service.send(
            self._identity,
            self._key,
            words.text,
            message_id=MessageId(words.message_id),
            delivery=body.delivery,
            **options.as_arguments(),
        )
        head = sent.head
        if head is None:
            head = (await self._operations.session(self._key)).head
            if found := await find_message(self._store, self._key, head, sent.message_id):
                if found.said.content != words.text:
                    raise Conflict("message_replaced", "This message was edited since. Send the new words.")
                if found.said.delivery != "steering":
                    return self._leg_of(found)
        if sent.state in ("removed", "refused"):
            raise Conflict("message_removed", "This message was taken out of the queue. Send it under another id.")
        if sent.waits_for_slot or (sent.while_running and body.delivery != "interrupt"):
            return await self._queued(sent)
        return self._leg_of_sent(sent, head, heard_since=hearing if sent.found_idle else None)

    async def _edit(self, body: ChatBody, words: Words) -> Response:
        row = await self._operations.session(self._key)
        found = await self._find(words.message_id)
        if found is None:
            return await self._edit_queued(body, words)
        if found.is_last and found.said.content == words.text:
            return self._leg_of(found)
        said = _with_options(
            UserMessage(
                message_id=found.said.message_id,
                turn_id=found.said.turn_id,
                content=words.text,
                delivery="idle",
                added=found.said.added,
                attachments=found.said.attachments,
                images=found.said.images,
                agent_mode=found.said.agent_mode,
                model=found.said.model,
                thinking=found.said.thinking,
            ),
            await self._chosen(body),
        )
        return await self._send_instead(said, found, row.head)

    async def _edit_queued(self, body: ChatBody, words: Words) -> Response:
        """It waits still; or it was never accepted, and then this is the first that is heard of it."""
        try:
            await self._operations.edit_queued(self._key, MessageId(words.message_id), words.text)
            sent = await self._operations.receipt(self._key, MessageId(words.message_id))
        except NotFound:
            return await self._send(body, words)
        return await self._queued(sent)

    async def _answer_again(self, body: ChatBody, again: Again) -> Response:
        row = await self._operations.session(self._key)
        found = await self._find(again.message_id)
        if found is None:
            raise NotFound("message_not_found", f"There is no message {again.message_id} in this session.")
        is_other = again.answer_id not in (None, found.said.turn_id)
        if is_other and found.is_last and await self._was_instead_of(found) == again.answer_id:
            return self._leg_of(found)  # That is done: this is the same request once more.
        said = _with_options(found.said, await self._chosen(body))
        return await self._send_instead(said, found, row.head)

    async def _was_instead_of(self, found: FoundMessage) -> str | None:
        return await turn_taken_back(self._store, self._key, found.started)

    async def _send_instead(self, said: UserMessage, found: FoundMessage, head: Position) -> Response:
        sent = await self._operations.send_instead(self._key, said, replaces=found.position, kept=found.before)
        if sent.waits_for_slot and not sent.returned:
            return await self._queued(sent)
        first = [returned_chunk(sent.returned_messages)] if sent.returned else []
        return self._leg_of_sent(sent, head, first=first)

    # Answers

    async def _continue(self, answers: Answers) -> Response:
        row = await self._operations.session(self._key)
        turn = await find_turn(self._store, self._key, row.head, answers.turn_id)
        if turn is None:
            raise NotFound("message_not_found", f"There is no message {answers.turn_id} in this session.")
        given = await give(self._operations, self._key, turn, answers, by=self._identity.name)
        first = [chunks.DataAnsweredElsewhere({"requestIds": list(given.elsewhere)})] if given.elsewhere else []
        leg = Leg(Projection(self._release), after=given.after, answered=given.answered)
        return self._stream(tell_leg(self._operations, self._key, leg, turn.started), first=first)

    # What is answered

    async def _chosen(self, body: ChatBody) -> Chosen:
        return await chosen(self._service, self._identity, self._key, body)

    async def _find(self, message_id: str) -> FoundMessage | None:
        row = await self._operations.session(self._key)
        return await find_message(self._store, self._key, row.head, message_id)

    def _leg_of(self, found: FoundMessage) -> Response:
        return self._stream(tell_leg(self._operations, self._key, Leg(Projection(self._release)), found.started))

    def _leg_of_sent(
        self, sent: Sent, head: Position, *, first: Iterable[Chunk] = (), heard_since: Subscription | None = None
    ) -> Response:
        told = tell_leg_of_message(
            self._operations,
            self._key,
            Leg(Projection(self._release)),
            sent.message_id,
            item_key=sent.item_key,
            head=head,
            heard_since=heard_since,
        )
        return self._stream(told, first=first)

    async def _queued(self, sent: Sent) -> Response:
        """It was accepted, and is not the next thing to be done."""
        row = await self._operations.session(self._key)
        queued = Queued(
            message_id=sent.message_id,
            buffer_length=row.waiting_messages,
            max_buffer_length=self._service.bounds.max_waiting_messages,
            turn_in_flight=row.turn_id is not None,
        )
        if self._wants_json:
            return answer(queued, 202)
        return self._stream(None, first=[queued.chunk()])

    def _stream(self, told: Told | None, *, first: Iterable[Chunk] = ()) -> Response:
        return self._service.streams.answer(self._identity, frames(told, first=first), headers=HEADERS)


def _with_options(said: UserMessage, options: Chosen) -> UserMessage:
    """A message that is sent once more: what was chosen now counts, and for the rest what was chosen then."""
    return msgspec.structs.replace(
        said,
        added=options.context.as_text() if options.context else said.added,
        model=options.model or said.model,
        thinking=said.thinking if options.thinking is None else options.thinking,
        agent_mode=options.agent_mode or said.agent_mode,
    )


def _names_json(accept: str) -> bool:
    """Whether a client says that it reads JSON. One that reads anything reads streams."""
    return any(kind.partition(";")[0].strip().lower() == "application/json" for kind in accept.split(","))
