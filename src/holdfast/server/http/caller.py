"""Who the caller is, as the server knows them: so that a person can tell two keys apart before they use one."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.identity import Role
from holdfast.server.http.service import Service
from holdfast.server.http.wire import answer


class IdentityView(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    """Whose sessions the caller sees."""
    role: Role
    name: str
    """Under which the caller's answers are noted."""
    key_id: str
    """The API key that the caller came with; empty if it was the token of a local server."""


def routes(service: Service) -> list[Route]:
    return routes_of(CallerRoutes(service).endpoints())


class CallerRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/identity",
                handler=self.look,
                summary="Who the caller is",
                answers={200: IdentityView},
            )
        ]

    async def look(self, request: Request) -> Response:
        identity = self._service.identity(request)
        return answer(
            IdentityView(owner=identity.owner, role=identity.role, name=identity.name, key_id=identity.key_id)
        )
