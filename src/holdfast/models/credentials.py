"""The secrets that clients give to their sessions: keys, tokens and headers for model calls. They are never in the log.

Without a sealing key they stay in the memory of the process that received them, and only that process can run the
session. With one they are only in the store, encrypted, and every process with that key can run it. The newest secrets
of a session replace all earlier ones.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from holdfast.events.ids import Key, MessageId
from holdfast.events.session import Provider
from holdfast.models.address import host_of
from holdfast.models.errors import BadHeader, SecretsUnknown
from holdfast.models.headers import check_headers, is_sendable

if TYPE_CHECKING:
    from holdfast.models.sealer import Sealer

MAX_SESSIONS: Final = 10_000
"""Sessions whose secrets one process keeps in memory. Beyond that it drops those of the least recently used session,
whose client must give them again."""

MAX_MESSAGES: Final = 1_000
"""Messages whose headers one process keeps. The oldest are dropped first, and their calls carry no headers."""

MAX_SECRET_CHARACTERS: Final = 16_384
"""The longest key or token. Servers accept no longer ones."""

NOBODY: Final = ""
"""The keeper of a session whose secrets are lost: its client must give them again."""

log = logging.getLogger(__name__)


class ProviderSecrets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The secrets for one endpoint, and no other. A bearer token takes precedence over a key."""

    api_key: str | None = None
    bearer_token: str | None = None
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return "ProviderSecrets(***)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Secrets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All the secrets that a client gave to one session."""

    providers: dict[str, ProviderSecrets] = {}
    """The secrets for each provider, by `place_of` it."""
    github_token: str | None = None

    def __repr__(self) -> str:
        return "Secrets(***)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Vault(Protocol):
    """The part of the store that records the keeper of each session's secrets, so that no other process runs it."""

    @property
    def process(self) -> str: ...

    async def keep_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> bool: ...

    async def lose_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> None: ...

    async def drop_secret(self, key: Key) -> None: ...

    async def secret(self, key: Key) -> tuple[str, bytes] | None: ...


class Credentials:
    """The secrets that one process knows. It calls `wake` when a session may have become runnable here."""

    def __init__(
        self,
        vault: Vault,
        *,
        sealer: "Sealer | None" = None,
        wake: Callable[[], None] = lambda: None,
        learned: Callable[[Iterable[str]], None] = lambda secrets: None,
    ) -> None:
        self._vault = vault
        self._sealer = sealer
        self._wake = wake
        self._learned = learned
        """Called with every secret that this process learns, so that it can be redacted."""
        self._in_memory: OrderedDict[Key, Secrets] = OrderedDict()
        self._headers = MessageHeaders()

    def __repr__(self) -> str:
        return f"Credentials(sessions={len(self._in_memory)})"

    # Secrets of sessions

    async def put(self, key: Key, secrets: Secrets) -> bool:
        """Replace the session's secrets. Returns False if the session does not exist.

        On return this process may run the session, or with a sealing key every process that has that key. Raises
        `ModelNotUsable` for secrets that no call could carry."""
        check_secrets(secrets)
        self._learned(_values(secrets))
        if self._sealer is None:
            self._remember(key, secrets)
            exists = await self._vault.keep_secret(key, keeper=self._vault.process)
        else:
            sealed = self._sealer.seal(key, msgspec.json.encode(secrets))
            exists = await self._vault.keep_secret(key, keeper=self._sealer.name, sealed=sealed)
        if not exists:
            self._in_memory.pop(key, None)
        self._wake()
        return exists

    async def forget(self, key: Key) -> None:
        """Drop the session's secrets, because it needs none any more or is deleted: any process may run it."""
        self._in_memory.pop(key, None)
        self._headers.drop(key)
        await self._vault.drop_secret(key)
        self._wake()

    async def for_provider(self, key: Key, provider: Provider) -> ProviderSecrets:
        """The secrets for the session's own provider: only those that the client gave for exactly this name and URL."""
        if not provider.has_secrets:
            return ProviderSecrets()
        secrets, kept = await self._look(key)
        of_provider = secrets.providers.get(place_of(provider)) if secrets is not None else None
        if of_provider is None:
            await self._lose(key, secrets, kept)
            raise SecretsUnknown("The key of the session's own provider")
        return of_provider

    async def github_token(self, key: Key) -> str | None:
        """The session's own token; None if it has none. Raises `SecretsUnknown` if this process does not know it."""
        secrets, kept = await self._look(key)
        if secrets is not None:
            return secrets.github_token
        if kept is None or await self._vault.secret(key) is None:
            return None
        await self._lose(key, secrets, kept)
        raise SecretsUnknown("The session's own token")

    async def _look(self, key: Key) -> tuple[Secrets | None, tuple[str, bytes] | None]:
        """The session's secrets, if this process knows them; and the keeper and sealed bytes that the store has, or
        would have, for them."""
        if self._sealer is None:
            if key in self._in_memory:
                self._in_memory.move_to_end(key)
            return self._in_memory.get(key), (self._vault.process, b"")
        kept = await self._vault.secret(key)
        return (None if kept is None else self._unsealed(key, kept[1])), kept

    async def _lose(self, key: Key, secrets: Secrets | None, kept: tuple[str, bytes] | None) -> None:
        """Record that no process has the secrets, unless a client gave them again meanwhile. Otherwise this process
        would claim the session again and again."""
        keeper, sealed = kept or (NOBODY, b"")
        await self._vault.lose_secret(key, keeper=keeper, sealed=sealed)
        if self._sealer is None and self._in_memory.get(key) is not secrets:
            # A client gave them again during that write.
            await self._vault.keep_secret(key, keeper=self._vault.process)

    def _remember(self, key: Key, secrets: Secrets) -> None:
        self._in_memory[key] = secrets
        self._in_memory.move_to_end(key)
        if len(self._in_memory) > MAX_SESSIONS:
            self._in_memory.popitem(last=False)

    def _unsealed(self, key: Key, sealed: bytes) -> Secrets | None:
        assert self._sealer is not None
        text = self._sealer.unseal(key, sealed) if sealed else None
        if text is not None:
            secrets = msgspec.json.decode(text, type=Secrets)
            self._learned(_values(secrets))
            return secrets
        if sealed:
            log.warning("the secrets of session %s were sealed under another key, or are damaged", key.session)
        return None

    # Headers of messages

    def add_headers(self, key: Key, message_id: MessageId, headers: Mapping[str, str]) -> None:
        """Send these headers with the calls of the message's turn, if it runs in this process. Raises `BadHeader`."""
        check_headers(headers)
        self._headers.add(key, message_id, headers)

    def headers(self, key: Key, message_ids: Iterable[MessageId]) -> dict[str, str]:
        """The headers for the calls of the turn with these messages; those of a newer message take precedence."""
        return self._headers.of_turn(key, message_ids)

    def turn_ended(self, key: Key) -> None:
        """Drop the headers of the session's last turn."""
        self._headers.end_turn(key)


def place_of(provider: Provider) -> str:
    """The key of a provider's secrets: its name and URL. A URL contains no space, so that no two providers share a
    key."""
    return f"{provider.name} {provider.base_url}" if provider.name else provider.base_url


def _values(secrets: Secrets) -> Iterable[str]:
    yield secrets.github_token or ""
    for provider in secrets.providers.values():
        yield provider.api_key or ""
        yield provider.bearer_token or ""
        yield from provider.headers.values()


class MessageHeaders:
    """The headers of each message, until its turn ends."""

    def __init__(self) -> None:
        self._by_message: OrderedDict[tuple[Key, MessageId], dict[str, str]] = OrderedDict()
        self._used: dict[Key, set[MessageId]] = {}

    def add(self, key: Key, message_id: MessageId, headers: Mapping[str, str]) -> None:
        if headers:
            self._by_message[key, message_id] = dict(headers)
        if len(self._by_message) > MAX_MESSAGES:
            self._drop(*next(iter(self._by_message)))

    def of_turn(self, key: Key, message_ids: Iterable[MessageId]) -> dict[str, str]:
        if not self._by_message:
            return {}
        mine = [message_id for message_id in message_ids if (key, message_id) in self._by_message]
        for message_id in self._used.pop(key, set()).difference(mine):
            self._drop(key, message_id)
        if mine:
            self._used[key] = set(mine)
        merged: dict[str, str] = {}
        for message_id in mine:
            for name, value in self._by_message[key, message_id].items():
                merged = {other: kept for other, kept in merged.items() if other.lower() != name.lower()}
                merged[name] = value
        return merged

    def end_turn(self, key: Key) -> None:
        for message_id in self._used.pop(key, set()):
            self._drop(key, message_id)

    def drop(self, key: Key) -> None:
        """Drop the headers of all messages of a session."""
        self._used.pop(key, None)
        for session, message_id in [entry for entry in self._by_message if entry[0] == key]:
            self._drop(session, message_id)

    def _drop(self, key: Key, message_id: MessageId) -> None:
        self._by_message.pop((key, message_id), None)
        if key in self._used:
            self._used[key].discard(message_id)


def check_secrets(secrets: Secrets) -> None:
    """Check that a call can carry the secrets. Raises `BadHeader` or `BadBaseUrl`, which repeat none of them."""
    for place, provider in secrets.providers.items():
        host_of(place.rpartition(" ")[2])
        check_headers(provider.headers, may_authorize=True)
        _check_secret("key", provider.api_key)
        _check_secret("token", provider.bearer_token)
    _check_secret("token", secrets.github_token)


def _check_secret(what: str, secret: str | None) -> None:
    if secret is not None and (not is_sendable(secret) or len(secret) > MAX_SECRET_CHARACTERS):
        raise BadHeader(f"the {what} is too long, or has a character that a header can't carry")
