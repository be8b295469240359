"""Limits on one owner's running turns, stored sessions and spending, so that no owner's work holds up the others'.

Each running turn takes up one *slot*: a session of the owner that a process holds. A sub-session runs in the slot of
its parent for as long as the parent's turn is unfinished.
"""

from typing import Final, Literal

import msgspec

from holdfast.events.ids import Owner
from holdfast.store.budget import UNLIMITED, SpendLimits

NO_LIMIT: Final = 1 << 62
"""The number of free slots of an owner without a limit."""

QuotaCode = Literal["too_many_sessions", "storage_full"]
FileQuotaCode = Literal["too_many_files", "files_full"]


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of every owner; those of turns and storage do not hold for owners in `unlimited`. None: no limit."""

    running: int | None = None
    """The number of slots of one owner; a further turn waits until a slot is free."""
    in_flight: int | None = None
    """Turns of one owner that run or wait for a slot; a further message that would start one is refused."""
    sessions: int | None = None
    """Sessions of one owner; a further one is refused."""
    stored_bytes: int | None = None
    """Total size of the logs and inboxes of one owner's sessions; above it, nothing more is accepted."""
    files: int | None = None
    """Files of one owner; a further one is refused."""
    file_bytes: int | None = None
    """Total size of one owner's files."""
    unlimited: frozenset[Owner] = frozenset()
    spend: SpendLimits = UNLIMITED
    """What the model calls of every owner may cost."""

    def running_of(self, owner: Owner) -> int | None:
        return None if owner in self.unlimited else self.running

    def in_flight_of(self, owner: Owner) -> int | None:
        return None if owner in self.unlimited else self.in_flight

    def free_slots(self, owner: Owner, taken: int) -> int:
        """How many slots an owner has left when so many are taken."""
        limit = self.running_of(owner)
        return NO_LIMIT if limit is None else limit - taken

    def has_quota(self, owner: Owner) -> bool:
        return owner not in self.unlimited and (self.sessions is not None or self.stored_bytes is not None)

    def bounds_bytes(self, owner: Owner) -> bool:
        return owner not in self.unlimited and self.stored_bytes is not None

    def stores_too_much(self, has: "Stored", more: int = 1) -> bool:
        return self.stored_bytes is not None and has.stored_bytes + more > self.stored_bytes

    def refuses_session(self, has: "Stored", size: int) -> QuotaCode | None:
        """Why one more session of `size` bytes is refused; None: it is not."""
        if self.sessions is not None and has.sessions >= self.sessions:
            return "too_many_sessions"
        return "storage_full" if self.stores_too_much(has, size) else None

    def bounds_files(self, owner: Owner) -> bool:
        return owner not in self.unlimited and (self.files is not None or self.file_bytes is not None)

    def refuses_file(self, has: "StoredFiles", size: int) -> FileQuotaCode | None:
        """Why one more file of `size` bytes is refused; None: it is not."""
        if self.files is not None and has.files >= self.files:
            return "too_many_files"
        return "files_full" if self.file_bytes is not None and has.file_bytes + size > self.file_bytes else None

    def file_sentence(self, code: FileQuotaCode) -> str:
        """The sentence that a person reads about the refusal of a file."""
        if code == "too_many_files":
            return f"You have {self.files:,} files, and may have no more. Delete one that you don't need."
        return f"Your files may have {self.file_bytes:,} bytes together, and this one has no room. Delete one first."

    def quota_sentence(self, code: str) -> str:
        """The sentence that a person reads about a refusal."""
        if code == "too_many_sessions":
            return f"You have {self.sessions:,} sessions, and may have no more. Delete one that you don't need."
        return f"Your sessions take up all of the {self.stored_bytes:,} bytes that they may. Delete one to go on."


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One owner's sessions that are not deleted, and the bytes of their events and inbox items."""

    sessions: int
    stored_bytes: int


class StoredFiles(msgspec.Struct, frozen=True, kw_only=True):
    """One owner's files, with those that are being stored."""

    files: int
    file_bytes: int


NO_LIMITS: Final = TurnLimits()


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """The turns of one owner that are in flight. Turns of sub-sessions use their parents' slots and are not counted."""

    running: int
    """Held, and not waiting for a person or client."""
    lingering: int
    """Held, though they wait for a person or client: they will be released in a moment, but still have their slot."""
    queued: int
    """Not held, and have something to do."""

    @property
    def in_flight(self) -> int:
        return self.running + self.queued

    @property
    def slots(self) -> int:
        """The number of taken slots."""
        return self.running + self.lingering

    def refusal(self) -> str:
        """The sentence that the sender of one message too many reads."""
        return f"{self.in_flight} turns run or wait already. Send it again when one of them has ended."
