"""Messages that wait for their turn: look at them, change them, put them in another order, take them back."""

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.events.ids import MessageId
from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.service import Service
from holdfast.server.http.views import QueuedView, queued_views
from holdfast.server.http.wire import answer, nothing, read_body


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The first is the next."""

    messages: tuple[QueuedView, ...]


class NewOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    message_ids: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=1_000)]
    """All that wait, in the order that they are to have."""


class NewText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1)]


def routes(service: Service) -> list[Route]:
    return routes_of(QueueRoutes(service).endpoints())


class QueueRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._operations = service.operations

    def endpoints(self) -> list[Endpoint]:
        whole = "/v1/sessions/{session_id}/queue"
        item = f"{whole}/{{message_id}}"
        return [
            Endpoint(
                method="GET", path=whole, handler=self.look, summary="The messages that wait", answers={200: Queue}
            ),
            Endpoint(
                method="PATCH",
                path=whole,
                handler=self.reorder,
                summary="Put the messages that wait in another order",
                body=NewOrder,
                answers={200: Queue},
            ),
            Endpoint(
                method="PATCH",
                path=item,
                handler=self.edit,
                summary="Change a message that waits",
                body=NewText,
                answers={200: Queue},
            ),
            Endpoint(
                method="DELETE",
                path=item,
                handler=self.remove,
                summary="Take back a message that waits",
                answers={204: None},
            ),
        ]

    async def look(self, request: Request) -> Response:
        return answer(Queue(messages=queued_views(await self._operations.queue(self._service.key(request)))))

    async def reorder(self, request: Request) -> Response:
        key = self._service.key(request)
        wanted = await read_body(request, NewOrder, limit=self._service.settings.max_body_bytes)
        await self._operations.session(key)
        await self._operations.reorder_queue(key, [MessageId(found) for found in wanted.message_ids])
        return await self.look(request)

    async def edit(self, request: Request) -> Response:
        key = self._service.key(request)
        wanted = await read_body(request, NewText, limit=self._service.settings.max_body_bytes)
        await self._operations.session(key)
        await self._service.check_use(self._service.identity(request), key)
        await self._operations.edit_queued(key, MessageId(request.path_params["message_id"]), wanted.text)
        return await self.look(request)

    async def remove(self, request: Request) -> Response:
        key = self._service.key(request)
        await self._operations.session(key)
        await self._operations.remove_queued(key, MessageId(request.path_params["message_id"]))
        return nothing()
