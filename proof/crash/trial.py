"""One trial of a crash campaign: its planned faults, and its result. One line describes a trial, and plays it again."""

import re
from typing import Literal

import msgspec

Kind = Literal["calm", "kill", "freeze", "pair"]

Database = Literal["sqlite", "postgresql"]

_SPEC = re.compile(r"(calm|kill|freeze|pair)@(\d+)/(.*)")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """`calm`: nothing goes wrong. `kill`: the process that plays `stage` is killed where the first aim says, the next
    one where the second says, and so on; the last is left alone. `freeze`: instead of being killed it is stopped
    until another process has done its work, and wakes up late. `pair`: two processes play at the same time, and the
    first is killed if there is an aim.

    An aim is a crash point and its occurrence (`put:message:after#1`), the n-th point of any name (`*#7`), a time in
    seconds (`~0.05`), or `-` for a process that is not to be killed (it ends by itself). One that begins with `+` is
    for the companion of a scenario.
    """

    scenario: str
    kind: Kind = "calm"
    stage: int = 0
    aims: tuple[str, ...] = ()
    seed: int = 0
    defect: str = ""
    database: Database = "sqlite"
    loses_power: bool = False
    """Between two processes the disk discards unsynced writes."""

    def lets_leases_expire(self, *, has_companion: bool) -> bool:
        """Whether the leases of a killed process on PostgreSQL are free only after their expiry: with every other seed,
        and always where a process lives on. Otherwise the runner, which knows of the death, ends the lease. On SQLite
        the system frees it at once."""
        return self.database == "postgresql" and bool(self.aims) and (has_companion or self.seed % 2 == 0)

    @property
    def spec(self) -> str:
        return f"{self.kind}@{self.stage}/{'|'.join(self.aims)}"

    @property
    def command(self) -> str:
        """The command that repeats the trial."""
        planted = f" --defect '{self.defect}'" if self.defect else ""
        planted += f" --database {self.database}" if self.database != "sqlite" else ""
        module = "proof.power_cut" if self.loses_power else "proof.crash.campaign"
        return f"python -m {module} --scenario {self.scenario} --seed {self.seed} --replay '{self.spec}'{planted}"


class Point(msgspec.Struct, frozen=True):
    """A crash point that was passed: in which stage, by the how-manieth process of that stage (from 0), its name."""

    stage: int
    process: int
    name: str
    by_companion: bool = False


class Violation(msgspec.Struct, frozen=True):
    invariant: str
    text: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial."""

    trial: Trial
    violations: tuple[Violation, ...] = ()
    kills: int = 0
    """Processes that were killed where they were aimed at."""
    recoveries_killed: int = 0
    """The killed processes that were themselves recovering."""
    freezes: int = 0
    points: tuple["Point", ...] = ()
    """The crash points that the processes of a trial without faults passed, in order."""
    seconds: float = 0
    """How long the longest process of a calm trial lived."""


def parse(scenario: str, spec: str, *, seed: int = 0, defect: str = "", database: Database = "sqlite") -> Trial:
    """The trial that a line describes; raises `ValueError` if it describes none."""
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise ValueError(f"{spec!r} is not a trial, such as kill@0/put:message:after#1|*#3")
    kind, stage, aims = found.groups()
    wanted = tuple(aim for aim in aims.split("|") if aim)
    told = {"scenario": scenario, "kind": kind, "stage": int(stage), "aims": wanted}
    return msgspec.convert({**told, "seed": seed, "defect": defect, "database": database}, Trial)
