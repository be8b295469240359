"""The caller as the server knows them, so that a person can tell two keys apart before using one."""

from starlette.responses import Response

from holdfast.protocol.identity import IdentityView
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response


@endpoint("GET", "/v1/identity", summary="The caller's identity", result=IdentityView)
async def show(call: HttpCall) -> Response:
    identity = call.identity
    return json_response(
        IdentityView(owner=identity.owner, role=identity.role, name=identity.name, key_id=identity.key_id)
    )
