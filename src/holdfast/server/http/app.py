"""The application: every route behind the gate, and every request noted."""

from starlette.routing import Route, Router
from starlette.types import ASGIApp

from holdfast.server.http import (
    caller,
    chat,
    copies,
    events,
    health,
    models,
    overview,
    page,
    permissions,
    queue,
    requests,
    sending,
    sessions,
    tasks,
)
from holdfast.server.http.access import Access
from holdfast.server.http.gate import Gate, Names
from holdfast.server.http.openapi import openapi_route
from holdfast.server.http.service import Service
from holdfast.server.http.watch import Watch


def api_routes(service: Service) -> list[Route]:
    """Everything but the schema, which is made of these. An address is looked for in this order: first what is asked
    most, and waited for."""
    return [
        *chat.routes(service),
        *events.routes(service),
        *page.routes(),
        *health.routes(service),
        *sessions.routes(service),
        *sending.routes(service),
        *queue.routes(service),
        *requests.routes(service),
        *permissions.routes(service),
        *tasks.routes(service),
        *copies.routes(service),
        *overview.routes(service),
        *models.routes(service),
        *caller.routes(service),
    ]


def application(service: Service, names: Names) -> ASGIApp:
    """What a web server is given."""
    found = api_routes(service)
    router = Router([*found, openapi_route(found)], redirect_slashes=False)
    watch = Watch(service.clock, service.identities.is_valid)
    gate = Gate(router, names=names, identities=service.identities, watch=watch)
    return Access(gate, clock=service.clock, observer=service.observer, accesses=service.accesses)
