"""The description of every route, for programs (OpenAPI 3.1), made of the types that the routes themselves read and
answer with."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.server.http.endpoint import Endpoint, EndpointRoute, routes_of
from holdfast.server.http.errors import ErrorBody
from holdfast.version import __version__

REF: Final = "#/components/schemas/{name}"

_PARAMETER: Final = re.compile(r"{(\w+)}")

ADDRESS: Final = "/v1/openapi.json"


def openapi_route(routes: Sequence[Route]) -> Route:
    """The document, made once, when it is first asked for."""
    made: list[bytes] = []

    async def show(request: Request) -> Response:
        if not made:
            made.append(msgspec.json.encode(document(_endpoints(routes))))
        return Response(made[0], media_type="application/json")

    (route,) = routes_of(
        [Endpoint(method="GET", path=ADDRESS, handler=show, summary="This description", is_public=True)]
    )
    return route


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    types = [*dict.fromkeys(found for endpoint in endpoints for found in _types(endpoint)), ErrorBody]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    named = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, named, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def _endpoints(routes: Sequence[Route]) -> list[Endpoint]:
    return [endpoint for route in routes if isinstance(route, EndpointRoute) for endpoint in route.endpoints]


def _types(endpoint: Endpoint) -> Iterable[Any]:
    if endpoint.query is not None:
        yield endpoint.query
    if endpoint.body is not None:
        yield endpoint.body
    yield from (found for found in endpoint.answers.values() if found is not None)


def _operation(endpoint: Endpoint, named: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": endpoint.summary, "responses": {}}
    if parameters := [*_path_parameters(endpoint.path), *_query_parameters(endpoint, named, components)]:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": named[endpoint.body]}}}
    for status, found in endpoint.answers.items():
        operation["responses"][str(status)] = _answer(endpoint, status, named.get(found))
    error = {"application/json": {"schema": named[ErrorBody]}}
    operation["responses"]["default"] = {"description": "Refused; the code says why", "content": error}
    if endpoint.is_public:
        operation["security"] = []
    return operation


def _answer(endpoint: Endpoint, status: int, schema: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"description": endpoint.summary}
    if schema is not None:
        described["content"] = {"application/json": {"schema": schema}}
    elif status == 200:
        described["content"] = {endpoint.media_type: {}}
    if endpoint.is_stream and status == 200:
        described.setdefault("content", {})["text/event-stream"] = {"schema": {"type": "string"}}
    return described


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1, "maxLength": 64}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in _PARAMETER.findall(path)]


def _query_parameters(
    endpoint: Endpoint, named: dict[Any, Any], components: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    if endpoint.query is None:
        return
    whole = components[named[endpoint.query]["$ref"].rpartition("/")[2]]
    for name, schema in whole["properties"].items():
        yield {"name": name, "in": "query", "required": False, "schema": _without_null(schema)}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: a parameter is there or it is not."""
    choices = [found for found in schema.get("anyOf", []) if found != {"type": "null"}]
    return choices[0] if len(choices) == 1 else {name: value for name, value in schema.items() if value is not None}
