"""API keys, each of one owner in one role. A key is shown once, when it is created; the store keeps a digest."""

import hashlib
import re
import secrets
from typing import Final

import msgspec

from holdfast.events.ids import Owner
from holdfast.protocol.identity import Role
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.http.identity import Identity
from holdfast.server.operations.session_access import PROGRAM
from holdfast.store.audit import Actor, AuditAction, AuditEntry, audit_entry
from holdfast.store.clock import Clock
from holdfast.store.keys import KeyRow
from holdfast.store.store import Store

TRUST_SECONDS: Final = 1.0
"""How long a lookup of a key is cached: a revoked key is refused within that time."""

MAX_TRUSTED: Final = 10_000

MAX_NAME_CHARACTERS: Final = 64

_KEY: Final = re.compile(r"hf_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})")


class MadeKey(msgspec.Struct, frozen=True):
    """A new key. The key itself is stored nowhere."""

    row: KeyRow
    key: str

    def __repr__(self) -> str:
        return f"MadeKey({self.row!r}, ***)"


class KeyRing:
    """Creates, lists and revokes keys, and identifies callers by them."""

    def __init__(self, store: Store, clock: Clock, actor: Actor = PROGRAM) -> None:
        self._store = store
        self._clock = clock
        self._actor = actor
        self._trusted: dict[tuple[str, bytes], tuple[KeyRow, float]] = {}

    async def create(self, *, name: str, role: Role, owner: str) -> MadeKey:
        """Create a key, durable on return. A crash before that leaves at most a key that no one has seen."""
        for what, text in (("name", name), ("owner", owner)):
            if not text.strip() or len(text) > MAX_NAME_CHARACTERS or not text.isprintable():
                raise Invalid(f"{what}_invalid", f"A key's {what} has 1 to {MAX_NAME_CHARACTERS} printable characters.")
        key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        row = KeyRow(
            key_id=key_id,
            name=name,
            owner=Owner(owner),
            role=role,
            digest=_digest(secret),
            created_at=self._clock.now_ms(),
        )
        await self._store.add_key(row, audit=self._told("key.created", key_id, owner, f"{role}: {name}"))
        return MadeKey(row, f"hf_{key_id}_{secret}")

    async def all(self) -> tuple[KeyRow, ...]:
        return await self._store.keys()

    async def revoke(self, key_id: str) -> None:
        owner = next((row.owner for row in await self._store.keys(key_id)), "")
        if not await self._store.revoke_key(key_id, audit=self._told("key.revoked", key_id, owner)):
            raise NotFound("key_not_found", f"There is no key {key_id} that could be revoked.")
        self._trusted = {key: found for key, found in self._trusted.items() if key[0] != key_id}

    def _told(self, action: AuditAction, key_id: str, owner: str, detail: str = "") -> AuditEntry:
        now = self._clock.now_ms()
        return audit_entry(now, self._actor, action, owner=owner, target=key_id, detail=detail)

    async def identify(self, bearer: str) -> Identity | None:
        """The identity of the key, or None. Id and secret are looked up together, here and in the store: a caller who
        knows only an id causes the same work as with an unknown id, and can't tell the two apart by timing."""
        parsed = _KEY.fullmatch(bearer)
        row = await self._valid(parsed["id"], _digest(parsed["secret"])) if parsed is not None else None
        if row is None:
            return None
        return Identity(owner=row.owner, role=row.role, name=row.name, key_id=row.key_id)

    async def is_valid(self, identity: Identity) -> bool:
        return any(row.revoked_at is None for row in await self._store.keys(identity.key_id))

    async def _valid(self, key_id: str, digest: bytes) -> KeyRow | None:
        now = self._clock.monotonic()
        trusted = self._trusted.get((key_id, digest))
        if trusted is not None and now < trusted[1]:
            return trusted[0]
        found = await self._store.valid_key(key_id, digest)
        if found is None:
            self._trusted.pop((key_id, digest), None)
            return None
        if len(self._trusted) >= MAX_TRUSTED:
            self._trusted.clear()
        self._trusted[key_id, digest] = (found, now + TRUST_SECONDS)
        return found


def _digest(secret: str) -> bytes:
    """One round is enough: the secret is random and too long to be guessed."""
    return hashlib.sha256(secret.encode()).digest()
