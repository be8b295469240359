"""Whether the process is alive, and whether it can serve requests."""

from typing import Final

import msgspec
from starlette.responses import Response

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.protocol.health import NONCE, PROOF, Health
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.errors import ApiError
from holdfast.server.http.start_token import StartToken
from holdfast.server.http.wire import json_response
from holdfast.store.store import Store
from holdfast.version import __version__

NO_SESSION: Final = Key(Owner(""), SessionId(""))


@endpoint("GET", "/healthz", summary="Whether the process is alive", result=Health, is_public=True)
async def show_liveness(call: HttpCall) -> Response:
    nonce, identities = call.header(NONCE), call.service.identities
    headers = {PROOF: identities.proof(nonce)} if nonce and isinstance(identities, StartToken) else None
    return json_response(Health(status="ok", version=__version__), headers=headers)


@endpoint(
    "GET",
    "/readyz",
    summary="Whether the store answers and the process accepts requests",
    result=Health,
    is_public=True,
)
async def show_readiness(call: HttpCall) -> Response:
    await check_readiness(call.operations.store, is_draining=call.service.is_draining)
    return json_response(readiness(call.service.redis_state()))


def readiness(redis_state: str | None) -> Health:
    """The health of a ready process. A process without Redis is ready as well, but people should know."""
    return Health(status="ready", version=__version__, redis=msgspec.UNSET if redis_state is None else redis_state)


async def check_readiness(store: Store, *, is_draining: bool) -> None:
    """Raise an error if this process should get no requests now."""
    if is_draining:
        raise ApiError(503, "shutting_down", "This server is about to end. Ask another one, or again in a moment.")
    await store.row(NO_SESSION)
