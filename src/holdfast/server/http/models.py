"""The models that a session may name."""

from fnmatch import fnmatchcase

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.service import Offered, Service
from holdfast.server.http.wire import answer


class Models(msgspec.Struct, frozen=True, kw_only=True):
    models: tuple[Offered, ...]
    """Those that are known by name. There may be more: any that the server's provider has."""


def routes(service: Service) -> list[Route]:
    return routes_of(ModelRoutes(service).endpoints())


class ModelRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/models",
                handler=self.list_all,
                summary="Models that a session may name",
                answers={200: Models},
            )
        ]

    async def list_all(self, request: Request) -> Response:
        allowed = self._service.policy(self._service.identity(request)).models
        offered = await self._service.models()
        return answer(Models(models=tuple(found for found in offered if _may_choose(found, allowed))))


def _may_choose(offered: Offered, allowed: tuple[str, ...] | None) -> bool:
    return allowed is None or any(fnmatchcase(offered.name, pattern) for pattern in allowed)
