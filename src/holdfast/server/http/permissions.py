"""What was allowed for always: listed, with who granted it, when and where, and taken back."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.service import Service
from holdfast.server.http.wire import answer
from holdfast.server.permissions import Permission, Permissions


class PermissionList(msgspec.Struct, frozen=True, kw_only=True):
    permissions: tuple[Permission, ...]


def routes(service: Service) -> list[Route]:
    return routes_of(PermissionRoutes(service).endpoints())


class PermissionRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._permissions = Permissions(service.operations)

    def endpoints(self) -> list[Endpoint]:
        everywhere, in_session = "/v1/permissions", "/v1/sessions/{session_id}/permissions"
        return [
            Endpoint(
                method="GET",
                path=everywhere,
                handler=self.list_all,
                summary="What was allowed for always, in directories and everywhere",
                answers={200: PermissionList},
            ),
            Endpoint(
                method="DELETE",
                path=f"{everywhere}/{{permission_id}}",
                handler=self.revoke,
                summary="Take back what was allowed for always, in all sessions",
                answers={200: Permission},
            ),
            Endpoint(
                method="GET",
                path=in_session,
                handler=self.list_of_session,
                summary="What a session may do without asking",
                answers={200: PermissionList},
            ),
            Endpoint(
                method="DELETE",
                path=f"{in_session}/{{permission_id}}",
                handler=self.revoke_in_session,
                summary="Take back what was allowed for one session",
                answers={200: Permission},
            ),
        ]

    async def list_all(self, request: Request) -> Response:
        owner = self._service.identity(request).owner
        return answer(PermissionList(permissions=await self._permissions.of_owner(owner)))

    async def revoke(self, request: Request) -> Response:
        owner = self._service.identity(request).owner
        return answer(await self._permissions.revoke(owner, request.path_params["permission_id"]))

    async def list_of_session(self, request: Request) -> Response:
        key = self._service.key(request)
        return answer(PermissionList(permissions=await self._permissions.of_session(key)))

    async def revoke_in_session(self, request: Request) -> Response:
        key = self._service.key(request)
        return answer(await self._permissions.revoke_in_session(key, request.path_params["permission_id"]))
