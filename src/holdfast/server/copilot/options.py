"""What a client says when it creates or resumes a session, checked and in our own words."""

from typing import Any, Final, Literal, Self

import msgspec

from holdfast.events.session import ClientTool, Provider
from holdfast.models.credentials import ProviderSecrets, Secrets, check_secrets, place_of
from holdfast.models.own_provider import check_provider
from holdfast.server.errors import Invalid
from holdfast.tools.built_in import HOLDFAST_SHELL

NO_PARAMETERS: Final = {"type": "object", "properties": {}}

_HOLDFAST_SHELL: Final = frozenset(found.name for found in HOLDFAST_SHELL)
"""Names that Copilot does not know: a client may use them for tools of its own."""


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool that the client runs."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    overrides_built_in_tool: bool | None = None
    skip_permission: bool | None = None
    is_terminal: bool | None = None
    metadata: dict[str, Any] | None = None

    def tool(self) -> ClientTool:
        ours = (self.metadata or {}).get("holdfast")
        return ClientTool(
            name=self.name,
            description=self.description,
            parameters=self.parameters or NO_PARAMETERS,
            asks_permission=not self.skip_permission,
            ends_turn=bool(self.is_terminal),
            delivered_once=isinstance(ours, dict) and ours.get("deliver") == "once",
        )


class SystemSection(msgspec.Struct, frozen=True, kw_only=True):
    action: str = "append"
    content: str = ""


class SystemMessageOptions(msgspec.Struct, frozen=True, kw_only=True):
    mode: Literal["append", "replace", "customize"] | None = None
    content: str | None = None
    sections: dict[str, SystemSection] | None = None

    def text(self) -> str:
        """Our own instructions have no sections: what is said for one is said after them."""
        added = [
            section.content
            for section in (self.sections or {}).values()
            if section.action in ("append", "prepend", "replace") and section.content
        ]
        return "\n\n".join([*added, *([self.content] if self.content else [])])


class ProviderOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model's endpoint that the client brings along."""

    base_url: str
    type: Literal["openai", "azure", "anthropic"] = "openai"
    wire_api: Literal["completions", "responses"] = "completions"
    api_key: str | None = None
    bearer_token: str | None = None
    headers: dict[str, str] | None = None
    azure: dict[str, Any] | None = None
    model_id: str | None = None
    wire_model: str | None = None
    name: str | None = None

    def provider(self) -> Provider:
        """What of it may be written down."""
        version = (self.azure or {}).get("apiVersion")
        return Provider(
            base_url=self.base_url,
            type=self.type,
            wire_api=self.wire_api,
            model=self.wire_model or self.model_id,
            api_version=version if isinstance(version, str) else None,
            has_secrets=bool(self.api_key or self.bearer_token or self.headers),
            name=self.name or "",
        )

    def secrets(self) -> ProviderSecrets:
        return ProviderSecrets(
            api_key=self.api_key or None, bearer_token=self.bearer_token or None, headers=self.headers or {}
        )


class NamedModel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model of one of the client's providers. It is chosen as `PROVIDER/ID`."""

    id: str
    provider: str
    wire_model: str | None = None


class SessionParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What `session.create` and `session.resume` take. What is not here is accepted, and means nothing yet."""

    session_id: str | None = None
    name: str | None = None
    model: str | None = None
    client_name: str | None = None
    reasoning_effort: str | None = None
    tools: tuple[ToolOptions, ...] | None = None
    system_message: SystemMessageOptions | None = None
    available_tools: tuple[str, ...] | None = None
    excluded_tools: tuple[str, ...] | None = None
    request_permission: bool | None = None
    request_user_input: bool | None = None
    working_directory: str | None = None
    streaming: bool | None = None
    provider: ProviderOptions | None = None
    providers: tuple[ProviderOptions, ...] | None = None
    models: tuple[NamedModel, ...] | None = None
    git_hub_token: str | None = None
    continue_pending_work: bool | None = None
    disable_resume: bool | None = None
    sandbox_config: dict[str, Any] | None = None

    def own_provider(self) -> ProviderOptions | None:
        """The endpoint that the session's model is asked at, if the client brought one."""
        return self.provider or self.provider_of(self.model or "")

    def provider_of(self, model: str) -> ProviderOptions | None:
        """The one of several providers that a model is of: `PROVIDER/ID`, both exactly as they were given. None: it is
        none of theirs. Raises `Invalid` for a model that the provider was not said to have."""
        name, _, model_id = model.partition("/")
        found = next((found for found in self.providers or () if found.name == name), None)
        if found is None:
            return None
        for known in self.models or ():
            if (known.provider, known.id) == (name, model_id):
                return msgspec.structs.replace(found, wire_model=known.wire_model or known.id)
        raise Invalid(
            "model_unknown", f"The provider {name} was given without a model {model_id!r}: add it to `models`."
        )

    def going_on_with(self, provider: Provider | None, model: str | None) -> Self:
        """A client that brings the session's own provider again, and names no model, means the session's model."""
        if self.model is not None or provider is None or not provider.name:
            return self
        is_brought = any(found.name == provider.name for found in self.providers or ())
        return msgspec.structs.replace(self, model=model) if is_brought else self

    def check_providers(self) -> None:
        """Raises `Invalid` for providers and models that could be mistaken for one another."""
        names = [found.name for found in self.providers or ()]
        if self.provider is not None and names:
            raise Invalid("providers_invalid", "Give `provider` or `providers`, not both.")
        for name in names:
            if not name or "/" in name or not name.isprintable():
                raise Invalid("providers_invalid", "Each of `providers` needs a name, printable and without a slash.")
            if names.count(name) > 1:
                raise Invalid("providers_invalid", f"There are two providers called {name}; a name can be used once.")
        models = [(found.provider, found.id) for found in self.models or ()]
        for provider, model_id in models:
            if provider not in names:
                raise Invalid("provider_unknown", f"The model {model_id} is of {provider}, which is not given.")
            if models.count((provider, model_id)) > 1:
                raise Invalid("providers_invalid", f"The model {provider}/{model_id} is given twice.")

    def secrets(self) -> Secrets | None:
        """What the client entrusts to the session; None: nothing."""
        brought = self.own_provider()
        has_secrets = brought is not None and brought.provider().has_secrets
        if not has_secrets and self.git_hub_token is None:
            return None
        return Secrets(providers=secrets_of(brought), github_token=self.git_hub_token)

    def client_tools(self, built_in: frozenset[str]) -> tuple[ClientTool, ...]:
        names = [found.name for found in self.tools or ()]
        for found in self.tools or ():
            if names.count(found.name) > 1:
                raise Invalid("tool_name_twice", f"There are two tools called {found.name}; a name can be used once.")
            if found.name in built_in - _HOLDFAST_SHELL and not found.overrides_built_in_tool:
                raise Invalid(
                    "tool_name_taken",
                    f'External tool "{found.name}" conflicts with a built-in tool of the same name. '
                    "Set overridesBuiltInTool: true to explicitly override it.",
                )
        return tuple(found.tool() for found in self.tools or () if self.offers(found.name, "custom"))

    def built_in_tools(self, built_in: tuple[str, ...]) -> tuple[str, ...]:
        """Those of our own tools that the model is offered. Commands go by Copilot's names; by Holdfast's only if the
        client names them."""
        asks = self.request_user_input or False
        named = {name.removeprefix("builtin:") for name in self.available_tools or ()}
        return tuple(
            name
            for name in built_in
            if self.offers(name, "builtin")
            and (asks or name != "ask_user")
            and (name not in _HOLDFAST_SHELL or name in named)
        )

    def offers(self, name: str, source: Literal["builtin", "custom"]) -> bool:
        """Whether the filters let a tool through. What is excluded stays out, also if it is made available."""
        patterns = {name, f"{source}:{name}", f"{source}:*"}
        if self.excluded_tools is not None and patterns & set(self.excluded_tools):
            return False
        return self.available_tools is None or bool(patterns & set(self.available_tools))


def secrets_of(*brought: ProviderOptions | None) -> dict[str, ProviderSecrets]:
    """What was given with each provider, bound to it."""
    return {place_of(found.provider()): found.secrets() for found in brought if found is not None}


def parsed(params: dict[str, Any], kind: type[SessionParams] = SessionParams) -> SessionParams:
    """Raises `Invalid` for a value of a wrong type, and `ModelNotUsable` for a provider or a secret that is of no use:
    before anything of it is written."""
    try:
        found = msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise Invalid("params_invalid", f"The parameters are not valid: {error}") from error
    if found.sandbox_config is not None and found.sandbox_config.get("enabled", True):
        raise Invalid(
            "sandbox_unsupported",
            "Clients don't choose the sandbox of commands; whoever starts the runtime does. Leave sandboxConfig out.",
        )
    found.check_providers()
    if found.provider is not None:
        found = msgspec.structs.replace(found, provider=msgspec.structs.replace(found.provider, name=None))
    brought, secrets = found.own_provider(), found.secrets()
    if brought is not None:
        check_provider(brought.provider())
    if secrets is not None:
        check_secrets(secrets)
    return found
