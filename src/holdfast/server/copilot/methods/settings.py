"""A session's settings: its name, its mode, its model, and the other options."""

import asyncio
import typing
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.events.body import Body
from holdfast.events.session import Mode, Provider, SettingsChanged
from holdfast.models.credentials import Secrets
from holdfast.models.own_provider import check_provider
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.methods.tools import replace_tools
from holdfast.server.copilot.model_choice import changes, choose
from holdfast.server.copilot.options import ProviderOptions, SessionParams, parsed, secrets_of
from holdfast.server.copilot.projection import shown_model
from holdfast.server.errors import Invalid
from holdfast.session.state import State

MODES: Final[tuple[Mode, ...]] = typing.get_args(Mode)

MAX_EFFORT_CHARACTERS: Final = 64
"""A reasoning effort is one word that the model's endpoint knows."""

ASK_USER: Final = "ask_user"


# The name


@method("session.name.get")
async def get_name(call: RpcCall) -> Any:
    row = await call.service.operations.session(call.attached().key)
    return {"name": row.title or None}


@method("session.name.set")
async def set_name(call: RpcCall) -> Any:
    call.attached()
    name = call.text("name").strip()
    if not name:
        raise call.failed("Session name cannot be empty")
    await call.service.operations.rename(call.key, name)


@method("session.name.setAuto")
async def set_name_automatically(call: RpcCall) -> Any:
    """Set an automatic name. It replaces the name made from the first message, but not one that a person chose."""
    name = call.text("summary").strip()
    key = call.attached().key
    return {"applied": bool(name) and await call.service.operations.suggest_title(key, name)}


# The mode


@method("session.mode.get")
async def get_mode(call: RpcCall) -> Any:
    return (await call.service.operations.state(call.attached().key)).mode


@method("session.mode.set")
async def set_mode(call: RpcCall) -> Any:
    key, mode = call.attached().key, _mode(call.text("mode"))
    expected = call.param("expectedMode", str, "") or None
    applied = await call.service.operations.change_mode(key, mode, expected=expected)
    return {"status": "unchanged", "modelChanged": False, "modeApplied": applied}


def _mode(name: str) -> Mode:
    for mode in MODES:
        if mode == name:
            return mode
    raise Invalid("mode_invalid", f"{name!r} is no mode. Use one of {', '.join(MODES)}.")


# The model


@method("session.model.getCurrent")
async def get_model(call: RpcCall) -> Any:
    state = await call.service.operations.state(call.attached().key)
    fields = {"modelId": shown_model(state.model), "reasoningEffort": state.reasoning_effort}
    return {name: value for name, value in fields.items() if value is not None}


@method("session.model.switchTo")
async def switch_model(call: RpcCall) -> Any:
    attached = call.attached()
    name, effort = call.text("modelId"), _effort(call)
    model, message = name, ""

    async def switched(state: State) -> list[Body]:
        nonlocal model, message
        model, provider = await _switched(call, attached.params, state, name)
        message = _change_message(state, model, effort)
        return changes(state, model, SettingsChanged(reasoning_effort=effort or UNSET, provider=provider))

    await call.service.operations.change(attached.key, switched)
    attached.params = msgspec.structs.replace(attached.params, model=name)
    return {
        "status": "applied",
        "deferred": False,
        "modelId": shown_model(model),
        "message": message,
        "deprecationWarnings": [],
    }


@method("session.model.setReasoningEffort")
async def set_effort(call: RpcCall) -> Any:
    effort = _effort(call)
    if effort is None:
        raise Invalid("effort_invalid", 'reasoningEffort is missing. Set it to the name of an effort, such as "high".')
    await call.service.operations.record(call.attached().key, SettingsChanged(reasoning_effort=effort))
    return {"reasoningEffort": effort}


def _effort(call: RpcCall) -> str | None:
    effort = call.param("reasoningEffort", str, "")
    if len(effort) > MAX_EFFORT_CHARACTERS:
        raise Invalid("effort_invalid", f"A reasoning effort is a word of at most {MAX_EFFORT_CHARACTERS} characters.")
    return effort or None


async def _switched(
    call: RpcCall, params: SessionParams, state: State, name: str
) -> tuple[str, Provider | UnsetType | None]:
    """The name that the session stores for a model, and the model's provider if that changes."""
    # With a single provider, a client names another of its models directly.
    several = msgspec.structs.replace(params, provider=None)
    model, provider = await choose(call.service.models, several, state, name)
    if isinstance(provider, Provider) and provider.name:
        check_provider(provider)  # Only the first model's provider has been checked so far.
        await _entrust(call, params, *(params.providers or ()))
    return model, provider


async def _entrust(call: RpcCall, params: SessionParams, *providers: ProviderOptions | None) -> None:
    """Keep the secrets of all these providers: the current one is used until the change is written."""
    secrets = Secrets(providers=secrets_of(*providers), github_token=params.git_hub_token)
    await call.service.credentials.put(call.key, secrets)


def _change_message(state: State, model: str, effort: str | None) -> str:
    suffix = f" ({effort})" if effort else ""
    if state.model is None or state.model == model:
        return f"Model changed to: {shown_model(model)}{suffix}"
    return f"Model changed from {shown_model(state.model)} to {shown_model(model)}{suffix}"


# The options


class Options(SessionParams, frozen=True, kw_only=True, rename="camel"):
    """The parameters of `session.options.update`. Other parameters are accepted and have no effect."""

    enable_streaming: bool | None = None
    ask_user_disabled: bool | None = None

    def streams(self) -> bool | None:
        return self.streaming if self.enable_streaming is None else self.enable_streaming


@method("session.options.update")
async def update_options(call: RpcCall) -> Any:
    attached, update = call.attached(), parsed(call.params, Options)
    assert isinstance(update, Options)
    params = _merged(attached, update)
    directory = await existing_directory(call, update.working_directory)

    async def updated(state: State) -> list[Body]:
        model, provider = await _model_of(call, params, state, update)
        settings = SettingsChanged(
            system_message=update.system_message.text() if update.system_message else UNSET,
            system_mode=_system_mode(update),
            working_directory=directory,
            tools=_tools(call, params, state, update),
            reasoning_effort=_effort(call) or UNSET,
            stream=UNSET if (streams := update.streams()) is None else streams,
            client_name=UNSET if update.client_name is None else update.client_name,
            provider=provider,
        )
        return changes(state, model, settings)

    if update.available_tools is not None or update.excluded_tools is not None:
        await replace_tools(call, attached, params)
    await call.service.operations.change(attached.key, updated)
    attached.params = params if update.model is None else msgspec.structs.replace(params, model=update.model)
    attached.member.streaming = bool(params.streaming)
    return {"success": True, "pluginHookCount": 0}


def _merged(attached: Attached, update: Options) -> SessionParams:
    """The client's parameters with this update applied."""
    fields: dict[str, Any] = {
        "available_tools": update.available_tools,
        "excluded_tools": update.excluded_tools,
        "streaming": update.streams(),
        "provider": update.provider,
    }
    if update.ask_user_disabled is not None:
        fields["request_user_input"] = attached.member.answers_questions and not update.ask_user_disabled
    changed = {name: value for name, value in fields.items() if value is not None}
    if update.provider is not None:
        changed |= {"providers": None, "models": None}
    return msgspec.structs.replace(attached.params, **changed)


async def _model_of(
    call: RpcCall, params: SessionParams, state: State, update: Options
) -> tuple[str | None, Provider | UnsetType | None]:
    if update.provider is not None:
        provider = update.provider.provider()
        await _entrust(call, params, call.attached().params.own_provider(), update.provider)
        return update.model or provider.model or shown_model(state.model), provider
    if update.model is None:
        return None, UNSET
    return await _switched(call, params, state, update.model)


def _system_mode(update: Options) -> Any:
    if update.system_message is None:
        return UNSET
    return "replace" if update.system_message.mode == "replace" else "append"


def _tools(call: RpcCall, params: SessionParams, state: State, update: Options) -> tuple[str, ...] | UnsetType:
    """The built-in tools that the model is offered; UNSET unless the update names them."""
    built_in = call.service.settings.built_in
    if update.available_tools is not None or update.excluded_tools is not None:
        return params.built_in_tools(built_in)
    if update.ask_user_disabled is None:
        return UNSET
    others = tuple(name for name in built_in if name != ASK_USER and (state.tools is None or name in state.tools))
    return (*others, ASK_USER) if params.request_user_input and ASK_USER in built_in else others


async def existing_directory(call: RpcCall, name: str | None) -> str | UnsetType:
    """The resolved path of a session's new working directory; UNSET without a name. Raises `Invalid` if it is
    missing."""
    if name is None:
        return UNSET
    path = call.service.settings.directory / name
    try:
        directory = await asyncio.to_thread(lambda: path.resolve() if path.is_dir() else None)
    except (OSError, RuntimeError, ValueError):
        directory = None
    if directory is None:
        raise Invalid("directory_not_found", f"The working directory {name} does not exist. Name one that does.")
    return str(directory)
