"""What a session is called and how it runs: its name, its mode, its model, and the options beside them."""

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
from holdfast.server.copilot.methods.tools import offer_again
from holdfast.server.copilot.model_choice import changes, choose
from holdfast.server.copilot.options import ProviderOptions, SessionParams, parsed, secrets_of
from holdfast.server.copilot.projection import shown_model
from holdfast.server.errors import Invalid
from holdfast.session.state import State

MODES: Final[tuple[Mode, ...]] = typing.get_args(Mode)

MAX_EFFORT_CHARACTERS: Final = 64
"""A word that the model's endpoint knows."""

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
    """A name that somebody chose stays; the one that was made of the first message does not."""
    name = call.text("summary").strip()
    key = call.attached().key
    return {"applied": bool(name) and await call.service.operations.suggest_title(key, name)}


# The mode


@method("session.mode.get")
async def get_mode(call: RpcCall) -> Any:
    return (await call.service.operations.state(call.attached().key)).mode


@method("session.mode.set")
async def set_mode(call: RpcCall) -> Any:
    key, wanted = call.attached().key, _mode(call.text("mode"))
    expected = call.param("expectedMode", str, "") or None
    applied = await call.service.operations.change_mode(key, wanted, expected=expected)
    return {"status": "unchanged", "modelChanged": False, "modeApplied": applied}


def _mode(name: str) -> Mode:
    for mode in MODES:
        if mode == name:
            return mode
    raise Invalid("mode_invalid", f"{name!r} is no mode; {', '.join(MODES)} are.")


# The model


@method("session.model.getCurrent")
async def get_model(call: RpcCall) -> Any:
    state = await call.service.operations.state(call.attached().key)
    told = {"modelId": shown_model(state.model), "reasoningEffort": state.reasoning_effort}
    return {name: value for name, value in told.items() if value is not None}


@method("session.model.switchTo")
async def switch_model(call: RpcCall) -> Any:
    attached = call.attached()
    name, effort = call.text("modelId"), _effort(call)
    model, said = name, ""

    async def switched(state: State) -> list[Body]:
        nonlocal model, said
        model, provider = await _switched(call, attached.params, state, name)
        said = _said(state, model, effort)
        return changes(state, model, SettingsChanged(reasoning_effort=effort or UNSET, provider=provider))

    await call.service.operations.change(attached.key, switched)
    attached.params = msgspec.structs.replace(attached.params, model=name)
    return {
        "status": "applied",
        "deferred": False,
        "modelId": shown_model(model),
        "message": said,
        "deprecationWarnings": [],
    }


@method("session.model.setReasoningEffort")
async def set_effort(call: RpcCall) -> Any:
    effort = _effort(call)
    if effort is None:
        raise Invalid("effort_invalid", "reasoningEffort is missing.")
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
    """What the session calls a model that its client names, and where that is asked if it is elsewhere."""
    # With a single provider, another model is asked for there by its name.
    several = msgspec.structs.replace(params, provider=None)
    model, provider = await choose(call.service.models, several, state, name)
    if isinstance(provider, Provider) and provider.name:
        check_provider(provider)  # Of those that the client brought only the first one asked was.
        await _entrust(call, params, *(params.providers or ()))
    return model, provider


async def _entrust(call: RpcCall, params: SessionParams, *brought: ProviderOptions | None) -> None:
    """Keep the keys of all these providers: the one that was asked so far still is, until the change is written."""
    secrets = Secrets(providers=secrets_of(*brought), github_token=params.git_hub_token)
    await call.service.credentials.put(call.key, secrets)


def _said(state: State, model: str, effort: str | None) -> str:
    after = f" ({effort})" if effort else ""
    if state.model is None or state.model == model:
        return f"Model changed to: {shown_model(model)}{after}"
    return f"Model changed from {shown_model(state.model)} to {shown_model(model)}{after}"


# The options


class Options(SessionParams, frozen=True, kw_only=True, rename="camel"):
    """What `session.options.update` takes. What is not here is accepted, and means nothing yet."""

    enable_streaming: bool | None = None
    ask_user_disabled: bool | None = None

    def streams(self) -> bool | None:
        return self.streaming if self.enable_streaming is None else self.enable_streaming


@method("session.options.update")
async def update_options(call: RpcCall) -> Any:
    attached, wanted = call.attached(), parsed(call.params, Options)
    assert isinstance(wanted, Options)
    params = _merged(attached, wanted)
    directory = await existing_directory(call, wanted.working_directory)

    async def updated(state: State) -> list[Body]:
        model, provider = await _model_of(call, params, state, wanted)
        settings = SettingsChanged(
            system_message=wanted.system_message.text() if wanted.system_message else UNSET,
            system_mode=_system_mode(wanted),
            working_directory=directory,
            tools=_tools(call, params, state, wanted),
            reasoning_effort=_effort(call) or UNSET,
            stream=UNSET if (streams := wanted.streams()) is None else streams,
            client_name=UNSET if wanted.client_name is None else wanted.client_name,
            provider=provider,
        )
        return changes(state, model, settings)

    if wanted.available_tools is not None or wanted.excluded_tools is not None:
        await offer_again(call, attached, params)
    await call.service.operations.change(attached.key, updated)
    attached.params = params if wanted.model is None else msgspec.structs.replace(params, model=wanted.model)
    attached.member.streaming = bool(params.streaming)
    return {"success": True, "pluginHookCount": 0}


def _merged(attached: Attached, wanted: Options) -> SessionParams:
    """What the client asks for from now on."""
    given: dict[str, Any] = {
        "available_tools": wanted.available_tools,
        "excluded_tools": wanted.excluded_tools,
        "streaming": wanted.streams(),
        "provider": wanted.provider,
    }
    if wanted.ask_user_disabled is not None:
        given["request_user_input"] = attached.member.answers_questions and not wanted.ask_user_disabled
    changed = {name: value for name, value in given.items() if value is not None}
    if wanted.provider is not None:
        changed |= {"providers": None, "models": None}
    return msgspec.structs.replace(attached.params, **changed)


async def _model_of(
    call: RpcCall, params: SessionParams, state: State, wanted: Options
) -> tuple[str | None, Provider | UnsetType | None]:
    brought = wanted.provider
    if brought is not None:
        provider = brought.provider()
        await _entrust(call, params, call.attached().params.own_provider(), brought)
        return wanted.model or provider.model or shown_model(state.model), provider
    if wanted.model is None:
        return None, UNSET
    return await _switched(call, params, state, wanted.model)


def _system_mode(wanted: Options) -> Any:
    if wanted.system_message is None:
        return UNSET
    return "replace" if wanted.system_message.mode == "replace" else "append"


def _tools(call: RpcCall, params: SessionParams, state: State, wanted: Options) -> tuple[str, ...] | UnsetType:
    """Only a client that says so changes which of our own tools are offered."""
    built_in = call.service.settings.built_in
    if wanted.available_tools is not None or wanted.excluded_tools is not None:
        return params.built_in_tools(built_in)
    if wanted.ask_user_disabled is None:
        return UNSET
    others = tuple(name for name in built_in if name != ASK_USER and (state.tools is None or name in state.tools))
    return (*others, ASK_USER) if params.request_user_input and ASK_USER in built_in else others


async def existing_directory(call: RpcCall, given: str | None) -> str | UnsetType:
    """A directory that a session is to work in from now on, which must be there."""
    if given is None:
        return UNSET
    wanted = call.service.settings.directory / given
    try:
        found = await asyncio.to_thread(lambda: wanted.resolve() if wanted.is_dir() else None)
    except (OSError, RuntimeError, ValueError):
        found = None
    if found is None:
        raise Invalid("directory_not_found", f"The working directory {given} does not exist. Name one that does.")
    return str(found)
