"""The caller as the server knows them, so that a person can tell two keys apart before using one."""

import msgspec
from starlette.responses import Response

from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.identity import Role
from holdfast.server.http.wire import json_response


class IdentityView(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    """The owner whose sessions the caller sees."""
    role: Role
    name: str
    """The name under which the caller's answers are recorded."""
    key_id: str
    """The caller's API key; empty for the token of a local server."""


@endpoint("GET", "/v1/identity", summary="The caller's identity", result=IdentityView)
async def show(call: HttpCall) -> Response:
    identity = call.identity
    return json_response(
        IdentityView(owner=identity.owner, role=identity.role, name=identity.name, key_id=identity.key_id)
    )
