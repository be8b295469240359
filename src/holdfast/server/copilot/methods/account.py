"""Credentials for model calls, and the list of models. A token is kept for the calls and never returned."""

from typing import Any, Final

import msgspec

from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.errors import Conflict, Invalid

GITHUB: Final = "https://github.com"

AUTO: Final[dict[str, Any]] = {"id": "auto", "name": "Auto", "capabilities": {"supports": {}, "limits": {}}}
"""Stands for the first model of the list; sessions that name no model use it."""

WITH_TOKEN: Final = ("token", "env", "gh-cli")
"""Kinds of credentials that contain a token."""

WITHOUT_SECRET: Final = ("user", "account", "copilot-api-token")
"""Kinds of credentials that only name an identity."""


@method("auth.getStatus")
async def get_status(call: RpcCall) -> Any:
    if not call.service.settings.token_given:
        return {"isAuthenticated": False, "statusMessage": "No token was given to this runtime."}
    return {"isAuthenticated": True, "authType": "token", "host": GITHUB, "statusMessage": "A token was given."}


@method("account.getQuota")
async def get_quota(call: RpcCall) -> Any:
    """Return no quotas: this runtime does not count requests."""
    return {"quotaSnapshots": {}}


@method("models.list")
async def list_models(call: RpcCall) -> Any:
    return {"models": await _models(call)}


@method("session.model.list")
async def list_session_models(call: RpcCall) -> Any:
    call.attached()
    return {"list": await _models(call)}


async def _models(call: RpcCall) -> list[dict[str, Any]]:
    listed = await call.service.models.listed()
    return [AUTO, *(model for model in listed if model["id"] != AUTO["id"])]


# Credentials of one session


@method("session.gitHubAuth.getStatus")
async def get_session_status(call: RpcCall) -> Any:
    attached = call.attached()
    if attached.identity is not None:
        return {"isAuthenticated": True, **attached.identity}
    if attached.params.git_hub_token is not None:
        status = {"isAuthenticated": True, "authType": "token", "host": GITHUB}
        return {**status, "statusMessage": "A token was given to this session."}
    return await get_status(call)


@method("session.gitHubAuth.setCredentials")
async def set_credentials(call: RpcCall) -> Any:
    """Keep a token in memory for this session's model calls only. Unsupported kinds of credentials are refused."""
    attached = call.attached()
    credentials = call.param("credentials", dict[str, Any], {})
    kind, token = credentials.get("type"), credentials.get("token")
    if credentials and kind not in (*WITH_TOKEN, *WITHOUT_SECRET):
        return {"success": False}
    if kind in WITH_TOKEN and not (isinstance(token, str) and token):
        raise Invalid("credentials_invalid", "These credentials need a token: set `token` to a non-empty string.")
    await _entrust(call, attached, token if kind in WITH_TOKEN else None)
    attached.identity = _identity(credentials) if credentials else None
    return {"success": True, "copilotUserResolved": False}


async def _entrust(call: RpcCall, attached: Attached, token: str | None) -> None:
    state = await call.service.operations.state(attached.key)
    params = msgspec.structs.replace(attached.params, git_hub_token=token)
    if state.provider is not None and state.provider.has_secrets and params.own_provider() is None:
        # The token and the provider's key are stored together, and only the other client has that key.
        raise Conflict("provider_elsewhere", "Another client brought this session's provider; resume with yours first.")
    secrets = params.secrets()
    if secrets is not None:
        await call.service.credentials.put(attached.key, secrets)
    elif attached.params.git_hub_token is not None:
        await call.service.credentials.forget(attached.key)
    attached.params = params


def _identity(credentials: dict[str, Any]) -> dict[str, str]:
    fields = {"authType": credentials["type"], "host": credentials.get("host"), "login": credentials.get("login")}
    known = {name: value for name, value in fields.items() if isinstance(value, str)}
    return {**known, "statusMessage": known.get("login", "A token was given to this session.")}
