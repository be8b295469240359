"""The parameters of `session.create` and `session.resume`, validated and converted to the runtime's types."""

from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import Meta

from holdfast.events.compaction import CompactionSettings
from holdfast.events.session import ClientTool, Provider
from holdfast.models.credentials import ProviderSecrets, Secrets, check_secrets, place_of
from holdfast.models.own_provider import check_provider
from holdfast.models.stated_facts import tokens_in, window_of
from holdfast.server.errors import Invalid
from holdfast.tools.built_in import HOLDFAST_ONLY

Fraction = Annotated[float, Meta(ge=0, le=1)]

NO_PARAMETERS: Final = {"type": "object", "properties": {}}

_HOLDFAST_ONLY: Final = frozenset(tool.name for tool in HOLDFAST_ONLY)
"""Tool names that Copilot does not have, so that a client may use them for its own tools."""


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
        """The system text. The runtime's instructions have no sections, so the text for a section is appended to
        them."""
        added = [
            section.content
            for section in (self.sections or {}).values()
            if section.action in ("append", "prepend", "replace") and section.content
        ]
        return "\n\n".join([*added, *([self.content] if self.content else [])])


class ProviderOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model endpoint that the client provides."""

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
    max_context_window_tokens: float | None = None
    max_prompt_tokens: float | None = None
    max_output_tokens: float | None = None

    def provider(self) -> Provider:
        """The provider without its secrets, for the log."""
        version = (self.azure or {}).get("apiVersion")
        return Provider(
            base_url=self.base_url,
            type=self.type,
            wire_api=self.wire_api,
            model=self.wire_model or self.model_id,
            api_version=version if isinstance(version, str) else None,
            has_secrets=bool(self.api_key or self.bearer_token or self.headers),
            name=self.name or "",
            max_window=self._window(),
            max_output=tokens_in(self.max_output_tokens),
        )

    def _window(self) -> int | None:
        limits = (self.max_context_window_tokens, self.max_prompt_tokens, self.max_output_tokens)
        return window_of(*map(tokens_in, limits))

    def secrets(self) -> ProviderSecrets:
        return ProviderSecrets(
            api_key=self.api_key or None, bearer_token=self.bearer_token or None, headers=self.headers or {}
        )


class NamedModel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model of one of the client's providers. Clients choose it as `PROVIDER/ID`."""

    id: str
    provider: str
    wire_model: str | None = None


class InfiniteSessionOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When the session compacts: fractions of the model's window."""

    enabled: bool | None = None
    background_compaction_threshold: Fraction | None = None
    buffer_exhaustion_threshold: Fraction | None = None

    def settings(self) -> CompactionSettings:
        return CompactionSettings(
            enabled=self.enabled is not False,
            start_percent=_percent(self.background_compaction_threshold),
            wait_percent=_percent(self.buffer_exhaustion_threshold),
        )


def _percent(fraction: float | None) -> int | None:
    """A whole percentage of at least 1."""
    return None if fraction is None else max(1, round(fraction * 100))


class SessionParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The parameters of `session.create` and `session.resume`. Other parameters are accepted and have no effect."""

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
    infinite_sessions: InfiniteSessionOptions | None = None

    def own_provider(self) -> ProviderOptions | None:
        """The client's endpoint for the session's model; None if the client provides none."""
        return self.provider or self.provider_of(self.model or "")

    def provider_of(self, model: str) -> ProviderOptions | None:
        """The client's provider of the model `PROVIDER/ID`, both matched exactly; None if no provider has that name.
        Raises `Invalid` for a model that `models` does not list for its provider."""
        name, _, model_id = model.partition("/")
        provider = next((provider for provider in self.providers or () if provider.name == name), None)
        if provider is None:
            return None
        for known in self.models or ():
            if (known.provider, known.id) == (name, model_id):
                return msgspec.structs.replace(provider, wire_model=known.wire_model or known.id)
        raise Invalid(
            "model_unknown", f"`models` lists no model {model_id!r} of the provider {name}: add it to `models`."
        )

    def with_session_model(self, provider: Provider | None, model: str | None) -> Self:
        """These parameters with the session's model, if the client provides its provider again and names no model."""
        if self.model is not None or provider is None or not provider.name:
            return self
        is_provided = any(options.name == provider.name for options in self.providers or ())
        return msgspec.structs.replace(self, model=model) if is_provided else self

    def check_providers(self) -> None:
        """Raises `Invalid` for ambiguous names of providers and models."""
        names = [provider.name for provider in self.providers or ()]
        if self.provider is not None and names:
            raise Invalid("providers_invalid", "Give `provider` or `providers`, not both.")
        for name in names:
            if not name or "/" in name or not name.isprintable():
                raise Invalid("providers_invalid", "Each of `providers` needs a name, printable and without a slash.")
            if names.count(name) > 1:
                raise Invalid("providers_invalid", f"There are two providers called {name}; a name can be used once.")
        models = [(model.provider, model.id) for model in self.models or ()]
        for provider, model_id in models:
            if provider not in names:
                raise Invalid(
                    "provider_unknown",
                    f"The model {model_id} is of {provider}, which is not given. Add it to `providers`.",
                )
            if models.count((provider, model_id)) > 1:
                raise Invalid("providers_invalid", f"The model {provider}/{model_id} is given twice.")

    def secrets(self) -> Secrets | None:
        """The secrets that the client entrusts to the session; None if there are none."""
        provider = self.own_provider()
        has_secrets = provider is not None and provider.provider().has_secrets
        if not has_secrets and self.git_hub_token is None:
            return None
        return Secrets(providers=secrets_of(provider), github_token=self.git_hub_token)

    def client_tools(self, built_in: frozenset[str]) -> tuple[ClientTool, ...]:
        """The tools that the client runs and the filters let through. Raises `Invalid` for a name that is taken."""
        names = [tool.name for tool in self.tools or ()]
        for tool in self.tools or ():
            if names.count(tool.name) > 1:
                raise Invalid("tool_name_twice", f"There are two tools called {tool.name}; a name can be used once.")
            if tool.name in built_in - _HOLDFAST_ONLY and not tool.overrides_built_in_tool:
                raise Invalid(
                    "tool_name_taken",
                    f'External tool "{tool.name}" conflicts with a built-in tool of the same name. '
                    "Set overridesBuiltInTool: true to explicitly override it.",
                )
        return tuple(tool.tool() for tool in self.tools or () if self.offers(tool.name, "custom"))

    def built_in_tools(self, built_in: tuple[str, ...]) -> tuple[str, ...]:
        """The built-in tools that the model is offered. Shell tools have Copilot's names; Holdfast's own are offered
        only if the client names them."""
        asks = self.request_user_input or False
        named = {name.removeprefix("builtin:") for name in self.available_tools or ()}
        return tuple(
            name
            for name in built_in
            if self.offers(name, "builtin")
            and (asks or name != "ask_user")
            and (name not in _HOLDFAST_ONLY or name in named)
        )

    def offers(self, name: str, source: Literal["builtin", "custom"]) -> bool:
        """Whether the filters let a tool through. An exclusion overrides `available_tools`."""
        patterns = {name, f"{source}:{name}", f"{source}:*"}
        if self.excluded_tools is not None and patterns & set(self.excluded_tools):
            return False
        return self.available_tools is None or bool(patterns & set(self.available_tools))


def secrets_of(*providers: ProviderOptions | None) -> dict[str, ProviderSecrets]:
    """The secrets of each provider, keyed by its place so that they are sent nowhere else."""
    return {place_of(options.provider()): options.secrets() for options in providers if options is not None}


def parsed(params: dict[str, Any], kind: type[SessionParams] = SessionParams) -> SessionParams:
    """Convert and check parameters before anything is written. Raises `Invalid` for a wrong type, and `ModelNotUsable`
    for a provider or secret that can't be used."""
    try:
        checked = msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise Invalid("params_invalid", f"The parameters are not valid: {error}") from error
    if checked.sandbox_config is not None and checked.sandbox_config.get("enabled", True):
        raise Invalid(
            "sandbox_unsupported",
            "A client can't choose the sandbox of commands. Leave sandboxConfig out, and start the runtime with "
            "HOLDFAST_SANDBOX instead.",
        )
    checked.check_providers()
    if checked.provider is not None:
        checked = msgspec.structs.replace(checked, provider=msgspec.structs.replace(checked.provider, name=None))
    provider, secrets = checked.own_provider(), checked.secrets()
    if provider is not None:
        check_provider(provider.provider())
    if secrets is not None:
        check_secrets(secrets)
    return checked
