"""Permissions that people granted in advance."""

from typing import Literal

import msgspec

PermissionScope = Literal["session", "directory", "everywhere"]


class PermissionOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """One grant of a rule."""

    granted_by: str
    """The name of the person; empty if unknown."""
    granted_at: int | None
    """Milliseconds since 1970; null if unknown."""
    session_id: str | None
    """The session that requested it; null if unknown."""


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that holds until it is revoked."""

    id: str
    """Derived from the rule and its place: the same rule, granted again, has the same id."""
    rule: str
    scope: PermissionScope
    directory: str | None
    """The directory of a permission with the scope `directory`."""
    session_id: str | None
    """The session of a permission with the scope `session`."""
    origins: tuple[PermissionOrigin, ...]
    """The oldest first."""


class PermissionList(msgspec.Struct, frozen=True, kw_only=True):
    permissions: tuple[Permission, ...]
