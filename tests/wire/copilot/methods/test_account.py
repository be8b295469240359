"""Tokens of sessions and of the process: they are used for model calls and never returned."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.wire.copilot.methods.world import Client, Desk, Refused, Session

pytestmark = pytest.mark.anyio

TOKEN = "a-token-that-nobody-may-see"


async def test_without_a_token_the_status_is_unauthenticated(client: Client) -> None:
    told = await client.ask("auth.getStatus")
    assert (told["isAuthenticated"], bool(told["statusMessage"])) == (False, True)


async def test_token_of_the_process_authenticates(desk: Desk) -> None:
    desk.service.settings = msgspec.structs.replace(desk.service.settings, token_given=True)
    told = await desk.client().ask("auth.getStatus")
    assert (told["isAuthenticated"], told["authType"], told["host"]) == (True, "token", "https://github.com")


async def test_quota_is_empty(client: Client) -> None:
    assert await client.ask("account.getQuota") == {"quotaSnapshots": {}}


async def test_session_token_is_used_for_model_calls_and_never_returned(
    desk: Desk, session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    credentials = {"type": "token", "host": "https://github.example", "token": TOKEN}
    told = await session.ask("gitHubAuth.setCredentials", credentials=credentials)
    assert told == {"success": True, "copilotUserResolved": False}
    assert await desk.runtime.credentials.github_token(desk.key(session)) == TOKEN
    status = await session.ask("gitHubAuth.getStatus")
    assert (status["isAuthenticated"], status["authType"]) == (True, "token")
    assert status["host"] == "https://github.example"
    await session.say("Hello")
    assert TOKEN not in str(status)
    assert TOKEN not in str(session.client.told)
    assert TOKEN not in caplog.text
    assert files_with(TOKEN, tmp_path) == []


def files_with(text: str, folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


async def test_session_token_can_be_removed(desk: Desk, session: Session) -> None:
    credentials = {"type": "gh-cli", "host": "https://github.com", "login": "me", "token": TOKEN}
    await session.ask("gitHubAuth.setCredentials", credentials=credentials)
    assert (await session.ask("gitHubAuth.getStatus"))["login"] == "me"
    await session.ask("gitHubAuth.setCredentials")
    assert await desk.runtime.credentials.github_token(desk.key(session)) is None
    assert (await session.ask("gitHubAuth.getStatus"))["isAuthenticated"] is False


async def test_identity_can_be_set_without_a_token(session: Session) -> None:
    credentials = {"type": "user", "host": "https://github.com", "login": "me"}
    assert (await session.ask("gitHubAuth.setCredentials", credentials=credentials))["success"] is True
    status = await session.ask("gitHubAuth.getStatus")
    assert (status["authType"], status["login"], status["statusMessage"]) == ("user", "me", "me")


@pytest.mark.parametrize("kind", ["hmac", "api-key", "token-provider", "x", None])
async def test_unsupported_credentials_are_refused(session: Session, kind: Any) -> None:
    told = await session.ask("gitHubAuth.setCredentials", credentials={"type": kind, "hmac": "x", "apiKey": "x"})
    assert told == {"success": False}
    assert (await session.ask("gitHubAuth.getStatus"))["isAuthenticated"] is False


async def test_missing_token_is_refused(session: Session) -> None:
    with pytest.raises(Refused, match="These credentials need a token"):
        await session.ask("gitHubAuth.setCredentials", credentials={"type": "token", "token": ""})


async def test_token_that_no_header_can_carry_is_refused_and_not_echoed(session: Session) -> None:
    credentials = {"type": "token", "host": "x", "token": f"{TOKEN}\n"}
    with pytest.raises(Refused, match="The call to the model can't be made") as refused:
        await session.ask("gitHubAuth.setCredentials", credentials=credentials)
    assert TOKEN not in refused.value.message


async def test_setting_a_token_keeps_the_clients_provider_key(desk: Desk, client: Client) -> None:
    provider = {"baseUrl": "https://one.example/v1", "apiKey": "key-one"}
    session = await client.session(model="a", provider=provider)
    await session.ask("gitHubAuth.setCredentials", credentials={"type": "token", "host": "x", "token": TOKEN})
    state = await desk.runtime.operations.state(desk.key(session))
    assert state.provider is not None
    secrets = await desk.runtime.credentials.for_provider(desk.key(session), state.provider)
    assert secrets.api_key == "key-one"


async def test_setting_a_token_does_not_drop_another_clients_provider_key(desk: Desk, client: Client) -> None:
    provider = {"baseUrl": "https://one.example/v1", "apiKey": "key-one"}
    session = await client.session(model="a", provider=provider)
    another = desk.client()
    await another.ask("session.resume", sessionId=session.id)
    theirs = Session(another, session.id, session.folder)
    with pytest.raises(Refused, match="Another client brought this session's provider"):
        await theirs.ask("gitHubAuth.setCredentials", credentials={"type": "token", "host": "x", "token": TOKEN})
    state = await desk.runtime.operations.state(desk.key(session))
    assert state.provider is not None
    assert (await desk.runtime.credentials.for_provider(desk.key(session), state.provider)).api_key == "key-one"
