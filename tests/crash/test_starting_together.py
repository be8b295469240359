"""Processes that open the same new database at the same moment."""

import sqlite3
from pathlib import Path

from holdfast.store.sqlite.connections import APPLICATION_ID, connect, create_if_missing
from holdfast.store.sqlite.migrations import MIGRATIONS, migrate


def make_at_once(path: Path) -> bool:
    """Creates the database as a slightly faster process would; False if that has to wait."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        other.executescript(
            f"BEGIN IMMEDIATE; {MIGRATIONS[0]} PRAGMA application_id = {APPLICATION_ID};"
            "PRAGMA user_version = 1; COMMIT;"
        )
    except sqlite3.OperationalError:
        return False
    finally:
        other.close()
    return True


def test_a_database_that_another_process_is_just_making_is_not_taken_for_a_foreign_one(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    create_if_missing(path)
    db = connect(path)
    made: list[bool] = []

    def while_looking(statement: str) -> None:
        if "sqlite_schema" in statement and not made:
            made.append(make_at_once(path))

    db.set_trace_callback(while_looking)
    try:
        migrate(db, path)
        assert made, "the look at the schema was never reached"
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    finally:
        db.close()
