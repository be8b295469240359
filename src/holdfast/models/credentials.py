"""What clients entrust to their sessions: keys, tokens and headers for calls to models. Never in the log.

They are in the memory of the process that they were given to, which then alone can run the session; or, when there is a
key to seal them under, only in the store, for every process with that key. The newest that a client gave count.
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
"""Whose secrets one process keeps in memory; the one not used for longest must then be given them again."""

MAX_MESSAGES: Final = 1_000
"""Whose headers one process keeps; the oldest go first, and their calls are made without."""

MAX_SECRET_CHARACTERS: Final = 16_384
"""A key or a token. Servers take no longer ones."""

NOBODY: Final = ""
"""Holds the secrets of a session that needs some and whose client must give them again."""

log = logging.getLogger(__name__)


class ProviderSecrets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """For one endpoint, and no other. A bearer token comes before a key."""

    api_key: str | None = None
    bearer_token: str | None = None
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return "ProviderSecrets(***)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Secrets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a client gave to one session."""

    providers: dict[str, ProviderSecrets] = {}
    """By the provider that each was given for: see `place_of`."""
    github_token: str | None = None

    def __repr__(self) -> str:
        return "Secrets(***)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Vault(Protocol):
    """Where it is noted who has the secrets of a session, so that nobody else tries to run it: the store."""

    @property
    def process(self) -> str: ...

    async def keep_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> bool: ...

    async def lose_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> None: ...

    async def drop_secret(self, key: Key) -> None: ...

    async def secret(self, key: Key) -> tuple[str, bytes] | None: ...


class Credentials:
    """One per process. `wake` is called when a session may be run here that could not before."""

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
        """Told of every secret that this process comes to know, so that none is shown."""
        self._in_memory: OrderedDict[Key, Secrets] = OrderedDict()
        self._headers = MessageHeaders()

    def __repr__(self) -> str:
        return f"Credentials(sessions={len(self._in_memory)})"

    # Of sessions

    async def put(self, key: Key, secrets: Secrets) -> bool:
        """Take what a client gave, instead of all that was given before. False: there is no such session.

        On return this process may run the session, and with a key to seal them every process that has it. Raises
        `ModelNotUsable` for what no call could carry."""
        check_secrets(secrets)
        self._learned(_values(secrets))
        if self._sealer is None:
            self._remember(key, secrets)
            found = await self._vault.keep_secret(key, keeper=self._vault.process)
        else:
            sealed = self._sealer.seal(key, msgspec.json.encode(secrets))
            found = await self._vault.keep_secret(key, keeper=self._sealer.name, sealed=sealed)
        if not found:
            self._in_memory.pop(key, None)
        self._wake()
        return found

    async def forget(self, key: Key) -> None:
        """The session needs nothing of its client (any more), or is gone: any process may run it."""
        self._in_memory.pop(key, None)
        self._headers.drop(key)
        await self._vault.drop_secret(key)
        self._wake()

    async def for_provider(self, key: Key, provider: Provider) -> ProviderSecrets:
        """What goes to the session's own provider: what was given for that name and that very URL, and nothing else."""
        if not provider.has_secrets:
            return ProviderSecrets()
        given, kept = await self._look(key)
        found = given.providers.get(place_of(provider)) if given is not None else None
        if found is None:
            await self._lose(key, given, kept)
            raise SecretsUnknown("The key of the session's own provider")
        return found

    async def github_token(self, key: Key) -> str | None:
        """The session's own token; None if it has none. Raises `SecretsUnknown` for one that is not known here."""
        given, kept = await self._look(key)
        if given is not None:
            return given.github_token
        if kept is None or await self._vault.secret(key) is None:
            return None
        await self._lose(key, given, kept)
        raise SecretsUnknown("The session's own token")

    async def _look(self, key: Key) -> tuple[Secrets | None, tuple[str, bytes] | None]:
        """What a client gave, as far as this process can know it; and what the store says of it, or would say."""
        if self._sealer is None:
            if key in self._in_memory:
                self._in_memory.move_to_end(key)
            return self._in_memory.get(key), (self._vault.process, b"")
        kept = await self._vault.secret(key)
        return (None if kept is None else self._unsealed(key, kept[1])), kept

    async def _lose(self, key: Key, given: Secrets | None, kept: tuple[str, bytes] | None) -> None:
        """Note that nobody has them, unless a client gave them anew meanwhile: or it would be tried again and again."""
        keeper, sealed = kept or (NOBODY, b"")
        await self._vault.lose_secret(key, keeper=keeper, sealed=sealed)
        if self._sealer is None and self._in_memory.get(key) is not given:
            # Given while that was being written.
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

    # Of single messages

    def add_headers(self, key: Key, message_id: MessageId, headers: Mapping[str, str]) -> None:
        """Send these along with the calls of the turn that the message is in, if it runs here. Raises `BadHeader`."""
        check_headers(headers)
        self._headers.add(key, message_id, headers)

    def headers(self, key: Key, message_ids: Iterable[MessageId]) -> dict[str, str]:
        """What goes along with the calls of the turn that these messages are in; a newer one's count for more."""
        return self._headers.of_turn(key, message_ids)

    def turn_ended(self, key: Key) -> None:
        """The headers that went along with the session's last turn are done with."""
        self._headers.end_turn(key)


def place_of(provider: Provider) -> str:
    """Tells providers apart, also two at the same URL. A URL has no space in it: no name can pass for another."""
    return f"{provider.name} {provider.base_url}" if provider.name else provider.base_url


def _values(secrets: Secrets) -> Iterable[str]:
    yield secrets.github_token or ""
    for provider in secrets.providers.values():
        yield provider.api_key or ""
        yield provider.bearer_token or ""
        yield from provider.headers.values()


class MessageHeaders:
    """The headers of single messages, until the turn that they are in ends."""

    def __init__(self) -> None:
        self._given: OrderedDict[tuple[Key, MessageId], dict[str, str]] = OrderedDict()
        self._used: dict[Key, set[MessageId]] = {}

    def add(self, key: Key, message_id: MessageId, headers: Mapping[str, str]) -> None:
        if headers:
            self._given[key, message_id] = dict(headers)
        if len(self._given) > MAX_MESSAGES:
            self._drop(*next(iter(self._given)))

    def of_turn(self, key: Key, message_ids: Iterable[MessageId]) -> dict[str, str]:
        if not self._given:
            return {}
        mine = [message_id for message_id in message_ids if (key, message_id) in self._given]
        for message_id in self._used.pop(key, set()).difference(mine):
            self._drop(key, message_id)
        if mine:
            self._used[key] = set(mine)
        merged: dict[str, str] = {}
        for message_id in mine:
            for name, value in self._given[key, message_id].items():
                merged = {other: kept for other, kept in merged.items() if other.lower() != name.lower()}
                merged[name] = value
        return merged

    def end_turn(self, key: Key) -> None:
        for message_id in self._used.pop(key, set()):
            self._drop(key, message_id)

    def drop(self, key: Key) -> None:
        """All of a session."""
        self._used.pop(key, None)
        for of, message_id in [found for found in self._given if found[0] == key]:
            self._drop(of, message_id)

    def _drop(self, key: Key, message_id: MessageId) -> None:
        self._given.pop((key, message_id), None)
        if key in self._used:
            self._used[key].discard(message_id)


def check_secrets(secrets: Secrets) -> None:
    """Raises `BadHeader` or `BadBaseUrl`, which repeat none of them."""
    for place, given in secrets.providers.items():
        host_of(place.rpartition(" ")[2])
        check_headers(given.headers, may_authorize=True)
        _check_secret("key", given.api_key)
        _check_secret("token", given.bearer_token)
    _check_secret("token", secrets.github_token)


def _check_secret(what: str, secret: str | None) -> None:
    if secret is not None and (not is_sendable(secret) or len(secret) > MAX_SECRET_CHARACTERS):
        raise BadHeader(f"the {what} is too long, or has a character that can't be in a header")
