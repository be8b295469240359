"""The secrets that clients give to their sessions, over a real store."""

import contextlib
import io
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from rich.pretty import Pretty

from holdfast.events.ids import Key, MessageId, Owner, SessionId
from holdfast.events.session import Provider
from holdfast.models.credentials import Credentials, ProviderSecrets, Secrets
from holdfast.models.errors import ModelNotUsable, SecretsUnknown
from holdfast.models.sealer import Sealer
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.store_conformance.words import KEY, MANY, create, send

pytestmark = pytest.mark.anyio

URL = "http://models.example/v1"
PROVIDER = Provider(base_url=URL, has_secrets=True)
GIVEN = ProviderSecrets(api_key="sk-hush", headers={"X-Org": "hush-org"})
SECRETS = Secrets(providers={URL: GIVEN}, github_token="gh-hush")
NEWER = Secrets(providers={URL: ProviderSecrets(api_key="sk-newer")})

Open = Callable[[], Awaitable[SqliteStore]]


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[SqliteStore] = []

    async def open_one() -> SqliteStore:
        opened.append(await SqliteStore.open(tmp_path / "holdfast.db", node="here", secret_key=SEALER.name))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: Open) -> SqliteStore:
    store = await open_store()
    await create(store)
    await send(store, "m")
    return store


SEALER = Sealer("a key that is long enough")
OTHER_SEALER = Sealer("another key that is long")
BOTH = pytest.mark.parametrize("sealer", [None, SEALER], ids=["in memory", "sealed"])


async def claims(store: SqliteStore) -> bool:
    found = [claim for claim in await store.claim(limit=MANY) if claim.eligible]
    for claim in found:
        await store.release(claim.lease, seen_tail=-1, how="handed_over")
    return bool(found)


@BOTH
async def test_secrets_are_used_only_for_the_url_they_were_given_for(store: SqliteStore, sealer: Sealer | None) -> None:
    credentials = Credentials(store, sealer=sealer)
    assert await credentials.put(KEY, SECRETS)
    assert await credentials.for_provider(KEY, PROVIDER) == GIVEN
    assert await credentials.github_token(KEY) == "gh-hush"
    assert await claims(store)
    elsewhere = msgspec.structs.replace(PROVIDER, base_url="http://evil.example/v1")
    with pytest.raises(SecretsUnknown, match="resume the session with a client that gives it"):
        await credentials.for_provider(KEY, elsewhere)


@BOTH
async def test_provider_without_secrets_gets_none(store: SqliteStore, sealer: Sealer | None) -> None:
    credentials = Credentials(store, sealer=sealer)
    await credentials.put(KEY, SECRETS)
    assert await credentials.for_provider(KEY, Provider(base_url=URL)) == ProviderSecrets()


@BOTH
async def test_newest_secrets_replace_the_others_and_forgetting_frees_the_session(
    store: SqliteStore, sealer: Sealer | None
) -> None:
    woken: list[bool] = []
    credentials = Credentials(store, sealer=sealer, wake=lambda: woken.append(True))
    await credentials.put(KEY, SECRETS)
    await credentials.put(KEY, NEWER)
    assert await credentials.for_provider(KEY, PROVIDER) == NEWER.providers[URL]
    assert await credentials.github_token(KEY) is None
    await credentials.forget(KEY)
    assert await store.secret(KEY) is None
    assert len(woken) == 3
    assert await claims(store)
    assert await credentials.github_token(KEY) is None


@BOTH
async def test_missing_session_keeps_no_secrets(store: SqliteStore, sealer: Sealer | None) -> None:
    missing = Key(Owner("ann"), SessionId("missing"))
    credentials = Credentials(store, sealer=sealer)
    assert not await credentials.put(missing, SECRETS)
    with pytest.raises(SecretsUnknown):
        await credentials.for_provider(missing, PROVIDER)
    assert await store.secret(missing) is None


@BOTH
async def test_session_without_known_secrets_is_tried_once_and_resumes_when_they_are_given(
    store: SqliteStore, sealer: Sealer | None
) -> None:
    credentials = Credentials(store, sealer=sealer)
    assert await claims(store)
    with pytest.raises(SecretsUnknown):
        await credentials.for_provider(KEY, PROVIDER)
    assert not await claims(store)
    await credentials.put(KEY, SECRETS)
    assert await claims(store)


@BOTH
async def test_session_with_secrets_for_another_url_is_tried_once(store: SqliteStore, sealer: Sealer | None) -> None:
    credentials = Credentials(store, sealer=sealer)
    await credentials.put(KEY, SECRETS)
    with pytest.raises(SecretsUnknown):
        await credentials.for_provider(KEY, Provider(base_url="http://other.example/v1", has_secrets=True))
    assert not await claims(store)


async def test_session_with_its_own_token_does_not_run_without_it(open_store: Open, store: SqliteStore) -> None:
    other = await open_store()
    assert await Credentials(other).github_token(KEY) is None
    await Credentials(store).put(KEY, SECRETS)
    with pytest.raises(SecretsUnknown, match="own token"):
        await Credentials(other).github_token(KEY)
    assert not await claims(other)
    assert await claims(store), "the process that has the token may still run the session"


class GivesMeanwhile(SqliteStore):
    """The real store; a client gives the secrets while their loss is being recorded."""

    credentials: Credentials | None = None

    async def lose_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> None:
        assert self.credentials is not None
        await self.credentials.put(key, SECRETS)
        await super().lose_secret(key, keeper=keeper, sealed=sealed)


@BOTH
async def test_secrets_given_while_their_loss_is_recorded_are_kept(tmp_path: Path, sealer: Sealer | None) -> None:
    store = await GivesMeanwhile.open(tmp_path / "other.db", node="here", secret_key=SEALER.name)
    await create(store)
    await send(store, "m")
    credentials = store.credentials = Credentials(store, sealer=sealer)
    with pytest.raises(SecretsUnknown):
        await credentials.for_provider(KEY, PROVIDER)
    assert await claims(store)
    await store.close()


async def test_sealed_secrets_are_readable_by_another_process_with_the_key(
    open_store: Open, store: SqliteStore
) -> None:
    await Credentials(store, sealer=SEALER).put(KEY, SECRETS)
    await store.close()
    other = await open_store()
    assert await claims(other)
    assert await Credentials(other, sealer=SEALER).for_provider(KEY, PROVIDER) == GIVEN
    assert await Credentials(other, sealer=SEALER).github_token(KEY) == "gh-hush"


async def test_secrets_sealed_under_another_key_count_as_absent_and_are_logged(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    await Credentials(store, sealer=OTHER_SEALER).put(KEY, SECRETS)
    assert not await claims(store), "a process with another key does not claim it"
    with caplog.at_level(logging.WARNING), pytest.raises(SecretsUnknown):
        await Credentials(store, sealer=SEALER).for_provider(KEY, PROVIDER)
    assert "sealed under another key, or are damaged" in caplog.text
    assert "hush" not in caplog.text
    await Credentials(store, sealer=SEALER).put(KEY, SECRETS)
    assert await claims(store)


async def test_no_plain_secret_is_in_the_database(store: SqliteStore, tmp_path: Path) -> None:
    for sealer in (None, SEALER):
        await Credentials(store, sealer=sealer).put(KEY, SECRETS)
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "holdfast.db")) as db:
        written = "".join(db.iterdump())
    assert 'INSERT INTO "secret"' in written
    assert "hush" not in written
    assert b"hush".hex().upper() not in written


async def test_least_recently_used_session_is_dropped(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.models.credentials.MAX_SESSIONS", 2)
    credentials = Credentials(store)
    keys = [Key(Owner("ann"), SessionId(name)) for name in "abc"]
    for key in keys[:2]:
        await create(store, key)
        await credentials.put(key, SECRETS)
    await credentials.for_provider(keys[0], PROVIDER)
    await create(store, keys[2])
    await credentials.put(keys[2], SECRETS)
    assert await credentials.for_provider(keys[0], PROVIDER) == GIVEN
    with pytest.raises(SecretsUnknown):
        await credentials.for_provider(keys[1], PROVIDER)


@pytest.mark.parametrize(
    "secrets",
    [
        Secrets(github_token="gh\nhush"),
        Secrets(github_token="x" * 20_000),
        Secrets(providers={URL: ProviderSecrets(api_key="hush\r\nX-Evil: 1")}),
        Secrets(providers={URL: ProviderSecrets(bearer_token="hüsh")}),
        Secrets(providers={URL: ProviderSecrets(headers={"Host": "hush"})}),
        Secrets(providers={"http://me:hush@x/v1": ProviderSecrets()}),
    ],
)
async def test_unsendable_secrets_are_refused_at_once_and_not_shown(store: SqliteStore, secrets: Secrets) -> None:
    with pytest.raises(ModelNotUsable) as raised:
        await Credentials(store).put(KEY, secrets)
    assert "hush" not in str(raised.value)
    assert await store.secret(KEY) is None


async def test_no_repr_shows_a_secret(store: SqliteStore) -> None:
    credentials = Credentials(store)
    await credentials.put(KEY, SECRETS)
    console = Console(file=io.StringIO())
    console.print(SECRETS, GIVEN, [SECRETS], Pretty(SECRETS))
    assert isinstance(console.file, io.StringIO)
    shown = f"{SECRETS!r} {SECRETS} {GIVEN!r} {[GIVEN]} {credentials!r} {console.file.getvalue()}"
    assert "Secrets" in shown
    assert "hush" not in shown


# Headers of messages

M1, M2, M3 = (MessageId(name) for name in ("m1", "m2", "m3"))


async def test_headers_last_for_the_turn_of_their_message(store: SqliteStore) -> None:
    credentials = Credentials(store)
    credentials.add_headers(KEY, M1, {"x-a": "1", "x-b": "1"})
    credentials.add_headers(KEY, M2, {"X-B": "2"})
    credentials.add_headers(KEY, M3, {"x-c": "3"})
    other = Key(Owner("bob"), KEY.session)
    assert credentials.headers(KEY, [M1]) == {"x-a": "1", "x-b": "1"}
    assert credentials.headers(KEY, [M1, M2]) == {"x-a": "1", "X-B": "2"}
    assert credentials.headers(other, [M1, M2]) == {}
    credentials.turn_ended(KEY)
    assert credentials.headers(KEY, [M1, M2]) == {}
    assert credentials.headers(KEY, [M3]) == {"x-c": "3"}, "the message waited for its own turn"
    assert credentials.headers(KEY, [MessageId("m4")]) == {}
    assert credentials.headers(KEY, [M3]) == {}, "the next turn drops the headers of the one before"


async def test_forgetting_a_session_drops_its_headers(store: SqliteStore) -> None:
    credentials = Credentials(store)
    credentials.add_headers(KEY, M1, {"x-a": "1"})
    await credentials.forget(KEY)
    assert credentials.headers(KEY, [M1]) == {}


async def test_oldest_headers_are_dropped_first(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.models.credentials.MAX_MESSAGES", 2)
    credentials = Credentials(store)
    for message_id in (M1, M2, M3):
        credentials.add_headers(KEY, message_id, {"x-m": message_id})
    assert credentials.headers(KEY, [M1]) == {}
    assert credentials.headers(KEY, [M2]) == {"x-m": "m2"}


async def test_forbidden_headers_are_refused_at_once(store: SqliteStore) -> None:
    with pytest.raises(ModelNotUsable, match="Authorization"):
        Credentials(store).add_headers(KEY, M1, {"Authorization": "x"})
