"""Messages sent for a receipt, by programs that follow the session's own stream; and whether it has come to rest."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.events.ids import MessageId
from holdfast.server.errors import NotFound
from holdfast.server.http.endpoint import ChosenId, Endpoint, routes_of
from holdfast.server.http.message_options import MessageOptions, chosen
from holdfast.server.http.service import Service
from holdfast.server.http.wire import answer, read_body
from holdfast.server.operations import DeliveryChoice, Sent
from holdfast.server.settled import is_settled
from holdfast.store.store import Cursor


class NewMessage(MessageOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str
    message_id: ChosenId | None = None
    """Sent again under it, it is the same message, and gets the same receipt."""
    delivery: DeliveryChoice = "steer"
    """What becomes of it while a turn runs."""
    unattended: bool = False
    """Nobody is there to be asked: what is not allowed in its turn is denied."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """How far a session is, and whether anything happens in it by itself."""

    head: int
    """The position of its last event."""
    is_settled: bool
    """Nothing more happens until somebody sends, answers or stops something, or a task ends."""


def routes(service: Service) -> list[Route]:
    return routes_of(SendingRoutes(service).endpoints())


class SendingRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._operations = service.operations

    def endpoints(self) -> list[Endpoint]:
        one = "/v1/sessions/{session_id}"
        return [
            Endpoint(
                method="POST",
                path=f"{one}/messages",
                handler=self.send,
                summary="Send a message, for its receipt alone: it is on disk, and its turn runs",
                body=NewMessage,
                answers={200: Sent},
            ),
            Endpoint(
                method="GET",
                path=f"{one}/messages/{{message_id}}",
                handler=self.receipt,
                summary="What became of a message so far",
                answers={200: Sent},
            ),
            Endpoint(
                method="GET",
                path=f"{one}/activity",
                handler=self.activity,
                summary="Whether a session has come to rest",
                answers={200: Activity},
            ),
        ]

    async def send(self, request: Request) -> Response:
        key = self._service.key(request)
        given = await read_body(request, NewMessage, limit=self._service.settings.max_body_bytes)
        identity = self._service.identity(request)
        await self._service.check_use(identity, key)
        options = await chosen(self._service, identity, key, given)
        sent = await self._service.send(
            identity,
            key,
            given.text,
            message_id=MessageId(given.message_id) if given.message_id is not None else None,
            delivery=given.delivery,
            unattended=given.unattended,
            **options.as_arguments(),
        )
        return answer(sent)

    async def receipt(self, request: Request) -> Response:
        key = self._service.key(request)
        await self._operations.session(key)
        return answer(await self._operations.receipt(key, MessageId(request.path_params["message_id"])))

    async def activity(self, request: Request) -> Response:
        key = self._service.key(request)
        head = (await self._operations.session(key)).head
        caught = await self._operations.store.catch_up(key, Cursor(head), limit=1)
        if caught is None:
            raise NotFound("session_not_found", f"There is no session {key.session}.")
        return answer(Activity(head=caught.row.head, is_settled=is_settled(caught)))
