"""The secrets that deliveries are signed with. An owner is shown a secret once; the store keeps it sealed if this
server has a key, and never in a log or an event."""

import os
from typing import TYPE_CHECKING, Final

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.store.webhooks import WebhookRow

if TYPE_CHECKING:
    from holdfast.models.sealer import Sealer

SECRET_BYTES: Final = 32

OLD_SECRET_MS: Final = 86_400_000
"""How long deliveries are signed with the secret before a rotation too: receivers have a day to change theirs."""


class WebhookSecrets:
    """Makes, seals and unseals the secrets of webhooks."""

    def __init__(self, sealer: "Sealer | None" = None) -> None:
        self._sealer = sealer

    @property
    def keeper(self) -> str:
        """The name of the key that new secrets are sealed with; empty: they are not sealed."""
        return self._sealer.name if self._sealer is not None else ""

    def make(self) -> bytes:
        return os.urandom(SECRET_BYTES)

    def seal(self, owner: Owner, webhook_id: str, secret: bytes) -> bytes:
        return secret if self._sealer is None else self._sealer.seal(_place(owner, webhook_id), secret)

    def unseal(self, row: WebhookRow, *, now: int) -> list[bytes]:
        """The secrets to sign with now, the newest first; empty if this process can't unseal them."""
        newest = self._unsealed(row, row.secret)
        if newest is None:
            return []
        old = self._unsealed(row, row.old_secret) if row.old_secret and now < row.old_until else None
        return [newest] if old is None else [newest, old]

    def _unsealed(self, row: WebhookRow, stored: bytes) -> bytes | None:
        if not row.keeper:
            return stored
        if self._sealer is None or self._sealer.name != row.keeper:
            return None
        return self._sealer.unseal(_place(row.owner, row.webhook_id), stored)


def _place(owner: Owner, webhook_id: str) -> Key:
    """What a secret is sealed for. No session has such an id."""
    return Key(owner, SessionId(f"webhook:{webhook_id}"))
