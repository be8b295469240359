"""The errors of a store.

StoreError
├── StoreUnavailable   the world failed: a full disk, a locked or unreachable database; try again
└── StoreUnusable      the database can't be opened as it is; the sentence says what to do
"""

from typing import Literal

UnavailableCode = Literal[
    "store_disk_full",
    "store_busy",
    "store_failed",
    "store_closed",
    "store_unreachable",
    "store_read_only",
    "store_file_lost",
    "store_writer_died",
]

UnusableCode = Literal[
    "store_corrupt",
    "store_read_only",
    "store_newer",
    "store_network_filesystem",
    "store_not_found",
    "store_sqlite_too_old",
    "store_sqlite_without_search",
    "store_not_a_database",
    "store_refused",
    "store_too_old",
    "store_needs_extra",
    "store_backed_up_elsewhere",
    "store_not_durable",
]


class StoreError(Exception):
    """Base of all errors that a store raises. `code` is stable; the message says what to do next."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class StoreUnavailable(StoreError):
    """A write or a read failed. Whether a write took place is unknown."""

    def __init__(self, code: UnavailableCode, message: str) -> None:
        super().__init__(code, message)


class StoreUnusable(StoreError):
    """The database can't be used at all."""

    def __init__(self, code: UnusableCode, message: str) -> None:
        super().__init__(code, message)
