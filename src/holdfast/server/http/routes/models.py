"""The models that a session may name."""

from fnmatch import fnmatchcase

from starlette.responses import Response

from holdfast.protocol.model import ModelList, OfferedModel
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response


@endpoint("GET", "/v1/models", summary="Models that a session may name", result=ModelList)
async def list_models(call: HttpCall) -> Response:
    allowed = call.policy.models
    offered = await call.service.models()
    return json_response(ModelList(models=tuple(model for model in offered if _may_choose(model, allowed))))


def _may_choose(offered: OfferedModel, allowed: tuple[str, ...] | None) -> bool:
    return allowed is None or any(fnmatchcase(offered.name, pattern) for pattern in allowed)
