"""Permissions that people granted in advance: listed with their origin, and revoked."""

from starlette.responses import Response

from holdfast.protocol.permission import Permission, PermissionList
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response


@endpoint(
    "GET",
    "/v1/permissions",
    summary="Permissions for directories and for everywhere",
    result=PermissionList,
)
async def list_permissions(call: HttpCall) -> Response:
    return json_response(PermissionList(permissions=await call.operations.permissions(call.identity.owner)))


@endpoint(
    "DELETE",
    "/v1/permissions/{permission_id}",
    summary="Revoke a permission in all sessions",
    result=Permission,
)
async def revoke(call: HttpCall) -> Response:
    revoked = await call.operations.revoke_permission(call.identity.owner, call.path("permission_id"))
    return json_response(revoked)


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/permissions",
    summary="The permissions of a session",
    result=PermissionList,
)
async def list_session_permissions(call: HttpCall) -> Response:
    return json_response(PermissionList(permissions=await call.operations.session_permissions(call.key)))


@endpoint(
    "DELETE",
    "/v1/sessions/{session_id}/permissions/{permission_id}",
    summary="Revoke a permission of one session",
    result=Permission,
)
async def revoke_in_session(call: HttpCall) -> Response:
    return json_response(await call.operations.revoke_session_permission(call.key, call.path("permission_id")))
