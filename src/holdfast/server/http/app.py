"""The application: every route behind the gate."""

from starlette.routing import Route, Router
from starlette.types import ASGIApp

from holdfast.server.http import (
    chat,
    copies,
    events,
    health,
    models,
    overview,
    queue,
    requests,
    sessions,
    tasks,
    welcome,
)
from holdfast.server.http.gate import Gate, Names
from holdfast.server.http.openapi import openapi_route
from holdfast.server.http.service import Service


def api_routes(service: Service) -> list[Route]:
    """Everything but the schema, which is made of these."""
    return [
        *welcome.routes(service),
        *health.routes(service),
        *sessions.routes(service),
        *queue.routes(service),
        *requests.routes(service),
        *events.routes(service),
        *tasks.routes(service),
        *copies.routes(service),
        *overview.routes(service),
        *models.routes(service),
        *chat.routes(service),
    ]


def application(service: Service, names: Names) -> ASGIApp:
    """What a web server is given."""
    found = api_routes(service)
    router = Router([*found, openapi_route(found)], redirect_slashes=False)
    return Gate(router, names=names, identities=service.identities)
