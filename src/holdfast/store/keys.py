"""API keys as the store keeps them: who each is for, and a digest by which it is known again."""

from typing import Literal

import msgspec

from holdfast.events.ids import Owner

KeyRole = Literal["user", "admin"]


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    key_id: str
    name: str
    owner: Owner
    role: KeyRole
    digest: bytes
    """Of its secret part, which is kept nowhere."""
    created_at: int
    revoked_at: int | None = None

    def __repr__(self) -> str:
        return f"KeyRow({self.key_id!r}, {self.name!r})"
