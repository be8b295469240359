"""The caller as the server knows them, so that a person can tell two keys apart before using one; and what they use."""

from starlette.responses import Response

from holdfast.protocol.identity import IdentityView
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response
from holdfast.server.views.usage import usage_view


@endpoint("GET", "/v1/identity", summary="The caller's identity, and usage of each quota", result=IdentityView)
async def show(call: HttpCall) -> Response:
    identity = call.identity
    streams = call.service.streams.usage(identity.owner)
    return json_response(
        IdentityView(
            owner=identity.owner,
            role=identity.role,
            name=identity.name,
            key_id=identity.key_id,
            expires_at=identity.expires_at,
            usage=await usage_view(call.operations.store, identity.owner, streams=streams),
        )
    )
