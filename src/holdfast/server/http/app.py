"""The ASGI application: every route behind the access gate, every request in the access log."""

from typing import Final

from starlette.routing import Router
from starlette.types import ASGIApp

from holdfast.server.http.access import AccessLog
from holdfast.server.http.endpoint import EndpointRoute, endpoints_of, routes_of
from holdfast.server.http.gate import PUBLIC, AccessGate, ServerNames
from holdfast.server.http.key_watch import KeyWatch
from holdfast.server.http.openapi import openapi_endpoint
from holdfast.server.http.routes import (
    activity,
    audit,
    billing,
    budgets,
    chat,
    compactions,
    events,
    exports,
    files,
    forks,
    health,
    identity,
    imports,
    messages,
    metrics,
    models,
    overview,
    page,
    permissions,
    pins,
    queue,
    requests,
    rewinds,
    sessions,
    stops,
    tasks,
    webhooks,
)
from holdfast.server.http.service import BILLING, HttpService

ROUTE_MODULES: Final = (
    chat,
    compactions,
    events,
    page,
    health,
    metrics,
    sessions,
    stops,
    messages,
    activity,
    queue,
    requests,
    permissions,
    pins,
    tasks,
    files,
    forks,
    rewinds,
    exports,
    imports,
    overview,
    models,
    identity,
    audit,
    webhooks,
    budgets,
    billing,
)
"""Paths are matched in this order: the most frequent requests, and those that people wait for, come first."""


def api_routes(service: HttpService) -> list[EndpointRoute]:
    """Every route, the OpenAPI document last: it describes the others."""
    endpoints = endpoints_of(ROUTE_MODULES)
    served = [endpoint for endpoint in endpoints if service.has_route(endpoint.path)]
    return routes_of([*served, openapi_endpoint(endpoints)], service)


def application(service: HttpService, names: ServerNames) -> ASGIApp:
    """The application that a web server runs."""
    router = Router(api_routes(service), redirect_slashes=False)
    watch = KeyWatch(service.clock, service.identities.is_valid)
    public = PUBLIC | ({BILLING} if service.has_route(BILLING) else set())
    gate = AccessGate(router, names=names, identities=service.identities, watch=watch, public=public)
    return AccessLog(gate, clock=service.clock, observer=service.observer, counts=service.request_counts)
