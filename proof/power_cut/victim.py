"""The first step of a process in a power-cut trial: make its SQLite record every operation on the database's files, and
plant a defect if the control asks for one."""

from pathlib import Path

from holdfast.store import crash_points
from proof.crash.trial import Database
from proof.power_cut import defects
from proof.power_cut.folder import DATABASE, records_of
from proof.power_cut.records import Recorder
from proof.power_cut.vfs import RecordingVfs


def begin(folder: Path, process: int, defect: str, database: Database) -> None:
    """Call it before the process's first connection. PostgreSQL forgets by itself."""
    if database == "sqlite":
        RecordingVfs(folder / DATABASE, Recorder(records_of(folder, process)), crash_points.reach).install()
    defects.plant(defect, database)
