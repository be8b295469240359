"""The OpenAPI 3.1 document, generated from the declarations of the endpoints and the types of their bodies."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response

from holdfast.protocol.error import ErrorBody
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import Endpoint
from holdfast.version import __version__

REF: Final = "#/components/schemas/{name}"

_PARAMETER: Final = re.compile(r"{(\w+)}")

PATH: Final = "/v1/openapi.json"

PUBLISHED_NAMES: Final[Mapping[str, str]] = {
    "AnswerBody": "Answer",
    "CancelBody": "Cancel",
    "ChatTool": "ClientToolGiven",
    "ClientMessage": "UiMessage",
    "ClientToolBody": "ToolGiven",
    "CompactBody": "Compact",
    "ConversationView": "Conversation",
    "ForkBody": "ForkGiven",
    "ForkQuery": "At",
    "KilledTask": "Killed",
    "MessagePageQuery": "Paging",
    "ModelList": "Models",
    "NewMessageBody": "NewMessage",
    "NewSessionBody": "NewSession",
    "OfferedModel": "Offered",
    "OutputQuery": "Part",
    "ProviderBody": "ProviderGiven",
    "QueueView": "Queue",
    "QueuedNotice": "Queued",
    "RequestList": "Requests",
    "RewindBody": "Rewind",
    "SeenBody": "SeenUpTo",
    "SeenView": "Seen",
    "SessionPatch": "Changes",
    "SessionQuery": "Listing",
    "TaskList": "Tasks",
    "TaskOutput": "Output",
    "UiMessage": "Message",
}
"""Components whose published name is not the name of their type. Generated clients know the published one."""


def openapi_endpoint(endpoints: Sequence[Endpoint]) -> Endpoint:
    """The endpoint of the document, which is generated once, at the first request for it."""
    generated: list[bytes] = []

    async def show(call: HttpCall) -> Response:
        if not generated:
            generated.append(msgspec.json.encode(document(endpoints)))
        return Response(generated[0], media_type="application/json")

    return Endpoint(
        method="GET", path=PATH, handler=show, summary="This description", results={200: None}, is_public=True
    )


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    types = [*dict.fromkeys(kind for endpoint in endpoints for kind in _types(endpoint)), ErrorBody]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    named = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, named, components)
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": {PUBLISHED_NAMES.get(name, name): schema for name, schema in components.items()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    published: dict[str, Any] = _published(whole)
    return published


def _published(value: Any) -> Any:
    """The same with every title and reference under its published name."""
    if isinstance(value, list):
        return [_published(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _renamed(name, each) for name, each in value.items()}


def _renamed(field: str, value: Any) -> Any:
    if field == "title" and isinstance(value, str):
        return PUBLISHED_NAMES.get(value, value)
    if field == "$ref":
        prefix, _, name = value.rpartition("/")
        return f"{prefix}/{PUBLISHED_NAMES.get(name, name)}"
    return _published(value)


def _types(endpoint: Endpoint) -> Iterable[Any]:
    if endpoint.query is not None:
        yield endpoint.query
    if endpoint.body is not None:
        yield endpoint.body
    yield from (kind for kind in endpoint.results.values() if kind is not None)


def _operation(endpoint: Endpoint, named: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": endpoint.summary, "responses": {}}
    if parameters := [*_path_parameters(endpoint.path), *_query_parameters(endpoint, named, components)]:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": named[endpoint.body]}}}
    if endpoint.takes_bytes:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    for status, kind in endpoint.results.items():
        operation["responses"][str(status)] = _response(endpoint, status, named.get(kind))
    error = {"application/json": {"schema": named[ErrorBody]}}
    operation["responses"]["default"] = {"description": "Refused; the code gives the reason", "content": error}
    if endpoint.is_public:
        operation["security"] = []
    return operation


def _response(endpoint: Endpoint, status: int, schema: Any) -> dict[str, Any]:
    response: dict[str, Any] = {"description": endpoint.summary}
    if schema is not None:
        response["content"] = {"application/json": {"schema": schema}}
    elif status == 200:
        response["content"] = {endpoint.media_type: {}}
    for text in ("text/event-stream" if endpoint.is_stream else None, endpoint.also):
        if text is not None and status == 200:
            response.setdefault("content", {})[text] = {"schema": {"type": "string"}}
    return response


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1, "maxLength": 64}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in _PARAMETER.findall(path)]


def _query_parameters(
    endpoint: Endpoint, named: dict[Any, Any], components: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    if endpoint.query is None:
        return
    query = components[named[endpoint.query]["$ref"].rpartition("/")[2]]
    for name, schema in query["properties"].items():
        yield {"name": name, "in": "query", "required": False, "schema": _without_null(schema)}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: a parameter is present or absent."""
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    return choices[0] if len(choices) == 1 else {name: value for name, value in schema.items() if value is not None}
