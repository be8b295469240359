"""One request that passed the access gate, with everything that a handler needs to answer it, and the checks of what
its caller may use."""

from functools import cached_property
from typing import TypeVar

from starlette.requests import Request

from holdfast.events.amounts import without_amounts
from holdfast.events.body import Body
from holdfast.events.ids import Key, SessionId
from holdfast.events.message import PageContext
from holdfast.events.role import RoleBounds
from holdfast.models.choice import OWN_MODEL
from holdfast.observability.spans import RequestSpan
from holdfast.server.errors import Invalid
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity
from holdfast.server.http.policy import Policy, check_session
from holdfast.server.http.scope import IDENTITY, REQUEST_SPAN, ROUTE
from holdfast.server.http.service import HttpService
from holdfast.server.http.wire import read_body, read_query
from holdfast.server.json_bounds import BODY, JsonBounds
from holdfast.server.message_options import MessageChoice, MessageOptions, thinking_tokens
from holdfast.server.operations import Operations
from holdfast.session.role import excess, narrowing
from holdfast.session.state import State
from holdfast.store.audit import Actor

T = TypeVar("T")


class HttpCall:
    """A handler reads the call, runs one operation and returns a response; it neither catches errors nor writes to the
    store itself."""

    def __init__(self, service: HttpService, request: Request) -> None:
        self.service = service
        self.request = request

    @cached_property
    def operations(self) -> Operations:
        """The verbs, as acts of the caller."""
        is_known = IDENTITY in self.request.scope
        return self.service.operations.acting_as(self.actor) if is_known else self.service.operations

    @cached_property
    def actor(self) -> Actor:
        """The caller, as the audit log names it."""
        identity, client = self.identity, self.request.client
        return Actor(
            kind="key" if identity.key_id else "token" if identity.subject else "start_token",
            id=identity.key_id or identity.subject,
            owner=identity.owner,
            role=identity.role,
            address=client.host if client is not None else "",
        )

    @property
    def identity(self) -> Identity:
        """The caller. The gate refuses requests without a known identity, except on public paths."""
        identity: Identity = self.request.scope[IDENTITY]
        return identity

    @property
    def policy(self) -> Policy:
        return self.service.policies.of(self.identity.role)

    @cached_property
    def key(self) -> Key:
        """The session that the path names, as a session of the caller. A session of another owner has another key, and
        is not found, like a session that never existed."""
        key = Key(self.identity.owner, SessionId(self.request.path_params["session_id"]))
        span: RequestSpan | None = self.request.scope.get(REQUEST_SPAN)
        if span is not None and self.request.method == "POST":
            self.service.observer.link_request(key, span.context)
        return key

    def path(self, name: str) -> str:
        """A parameter of the path."""
        parameter: str = self.request.path_params[name]
        return parameter

    def header(self, name: str) -> str:
        return self.request.headers.get(name, "")

    def query(self, kind: type[T]) -> T:
        return read_query(self.request, kind)

    async def body(self, kind: type[T], *, limit: int | None = None, bounds: JsonBounds = BODY) -> T:
        most = self.service.settings.max_body_bytes if limit is None else limit
        return await read_body(self.request, kind, limit=most, bounds=bounds)

    # What the caller may see

    def shown(self, body: Body) -> Body:
        """An event as the caller may read it. What model calls cost is for admins: people see how much of their budget
        is used."""
        return body if self.identity.is_admin else without_amounts(body)

    # What the caller may use

    async def check_admin(self, refusal: str = "This is for admins of the server.") -> None:
        """Raise `ApiError` unless the caller is an admin, and tell the audit log of the attempt."""
        if not self.identity.is_admin:
            route = self.request.scope.get(ROUTE, "")
            await self.service.denials.tell(self.actor, f"{self.request.method} {route}")
            raise ApiError(403, "admins_only", refusal)

    @cached_property
    def bounds(self) -> RoleBounds | None:
        """The bounds of the caller's role; None: it may use anything."""
        if not self.policy.is_limited:
            return None
        return self.policy.bounds(self.identity.owner, default_model=self.service.settings.model)

    def check_model(self, model: str) -> None:
        """Raise an error if the caller may not choose the model, or if the server can't call it."""
        self.policy.check_model(model)
        if model != self.service.settings.model:
            self.service.check_model(model)

    async def message_choice(self, key: Key, options: MessageOptions) -> MessageChoice:
        """The options of a message, if the server has the model and the role may choose it. The session's row is read
        only for a message that names a model."""
        page = options.context
        is_own = options.names_model and (await self.operations.session(key)).model == OWN_MODEL
        return MessageChoice(
            context=PageContext(url=page.url, content=page.content) if page and (page.url or page.content) else None,
            model=self._chosen_model(options, is_own=is_own),
            thinking=thinking_tokens(options.thinking),
            agent_mode=options.mode or "",
            file_ids=options.files,
        )

    def _chosen_model(self, options: MessageOptions, *, is_own: bool) -> str | None:
        if options.model is not None and options.tier is not None:
            raise Invalid("invalid", "Give a `model` or a `tier`, not both.")
        if is_own and options.tier is not None:
            raise Invalid(
                "tier_not_offered", "This session has a provider of its own, which knows no tiers. Name a model."
            )
        model = options.model if options.tier is None else self.service.settings.model_of_tier(options.tier)
        if model is not None and not is_own:
            self.check_model(model)
        return model

    async def check_use(self, key: Key | None = None) -> None:
        """Raise `ApiError` if the session has more than the caller's role may use. Otherwise rules that the role
        may not grant are removed from the session, so that it asks again, its folder gets the bounds of the role's
        folders, and a model that the role may not choose is replaced by the server's default; a crash after that leaves
        the session so. `key` names a session that the path does not name."""
        key = self.key if key is None else key
        bounds = self.bounds
        if bounds is None:
            return
        state = await self.operations.state(key)
        check_session(bounds, state)

        async def narrow(state: State) -> list[Body]:
            return narrowing(state, bounds)

        if narrowing(state, bounds):
            await self.operations.change(key, narrow)

    async def check_change(self) -> None:
        """Raise `ApiError` if the session has more than the caller's role may use. For changes that start no work, so
        the session keeps rules and a model beyond the role."""
        if self.bounds is not None:
            check_session(self.bounds, await self.operations.state(self.key))

    async def may_change(self) -> bool:
        """Whether `check_change` would pass."""
        return self.bounds is None or excess(await self.operations.state(self.key), self.bounds) is None
