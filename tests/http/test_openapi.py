"""The published schema is true: whatever it allows is answered as it says, and whatever it does not is refused."""

import asyncio
import contextlib
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok

from holdfast.events.ids import CHOSEN_ID
from holdfast.server.http import openapi
from holdfast.server.http.app import ROUTE_MODULES
from holdfast.server.http.endpoint import endpoints_of
from holdfast.server.http.gate import PUBLIC
from holdfast.server.http.service import BILLING
from tests.http.world import Client, Server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

EXAMPLES = 8
"""For each operation, once with right and once with wrong values, against a session that there is."""


async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    response = await client.get("/v1/openapi.json")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


async def test_the_schema_is_public_and_names_what_is_there(client: Client, server: Server) -> None:
    async with server.client("") as nobody:
        found = await document(nobody)
    assert found["openapi"] == "3.1.0"
    assert set(found["paths"]["/v1/sessions/{session_id}"]) == {"get", "patch", "delete"}
    created = found["components"]["schemas"]["NewSession"]
    assert created["additionalProperties"] is False
    chosen = {"type": "string", "minLength": 1, "maxLength": 64, "pattern": f"^{CHOSEN_ID}$"}
    assert created["properties"]["id"]["anyOf"][0] == chosen


def test_components_keep_their_published_names_when_their_types_are_renamed() -> None:
    components = set(openapi.document(endpoints_of(ROUTE_MODULES))["components"]["schemas"])
    published = set(openapi.PUBLISHED_NAMES.values())
    assert published <= components
    assert (set(openapi.PUBLISHED_NAMES) - published) & components == set()


async def test_only_paths_that_the_schema_calls_public_need_no_key(client: Client, server: Server) -> None:
    found = await document(client)
    is_open = {path for path, methods in found["paths"].items() for about in methods.values() if "security" in about}
    assert is_open == (PUBLIC - {"/v1/openapi.json"}) | {"/assets/{name}", BILLING}
    async with server.client("") as nobody:
        for path in found["paths"].keys() - {BILLING}:  # This server has no secret for it, and so not the route.
            response = await nobody.get(path)
            assert (response.status_code != 401) == (path in is_open)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
async def test_every_operation_keeps_to_the_schema(client: Client, server: Server, mode: GenerationMode) -> None:
    found = await document(client)
    session = await client.make()
    await asyncio.to_thread(_try_all, found, server, session, mode)
    assert (await client.get("/readyz")).status_code == 200


def _try_all(found: dict[str, Any], server: Server, session: str, mode: GenerationMode) -> None:
    headers = {"authorization": f"Bearer {server.token}"}
    for result in schemathesis.openapi.from_dict(found).get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def keeps_to_it(case: "Case[Any]") -> None:
            _aim(case, session)
            response = case.call(base_url=server.url, headers=headers, timeout=60, allow_redirects=False)
            case.validate_response(response, checks=CHECKS)

        with contextlib.suppress(Unsatisfiable):  # Where nothing is given, nothing can be given wrongly.
            keeps_to_it()


def _aim(case: "Case[Any]", session: str) -> None:
    """At the session that there is, and without the wait that the schema allows."""
    if case.method != "DELETE" and "session_id" in (case.path_parameters or {}):
        case.path_parameters["session_id"] = session
    if "wait" in (case.query or {}):
        case.query["wait"] = 0
