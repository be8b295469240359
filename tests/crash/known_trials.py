"""The trials in which planted defects are known to show.

`python -m tests.crash.known_trials --database DATABASE DEFECT …` plays them side by side, in a process that has no
threads and so may fork, and prints the defects that did not show.
"""

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import get_args

from proof.crash import postgres_trials
from proof.crash.campaign import scratch_folder
from proof.crash.defects import BY_NAME
from proof.crash.runner import Jobs
from proof.crash.trial import Database, Trial, parse

JOBS = 4
"""Trials at a time: in many of them a client waits in vain, for as long as its patience lasts."""

ROUNDS = 6
"""How often the trials of a defect are played that has not shown: a race may need some rounds."""

KNOWN: dict[Database, dict[str, tuple[str, ...]]] = {
    "sqlite": {
        "commits are not fenced": ("tools", *("freeze@0/keep_snapshot:snapshot:after#3",) * 2),
        "a session is released without a look at its inbox": (
            "late-follow-up",
            "kill@0/release:session:after#1",
            "kill@0/commit:holdfast.turn_started+user.message+assistant.turn_start:after#1",
        ),
        "a session is taken from a holder that lives": ("streaming", "pair@0/"),
        "a put is acknowledged before it is committed": ("plain", "kill@0/put:message:before#1"),
        "an act is told after it": ("entrusted", "kill@0/add_key:key:after#1"),
        "the same client id is accepted twice": ("plain", "kill@0/put:message:after#1"),
        "a promoted item is consumed before its events": ("plain", "kill@0/put:message:after#1"),
        "a promoted item is consumed after its events": ("plain", "kill@0/claim:sessions:after#1"),
        "the end of a turn is a unit of its own": (
            "plain",
            "kill@0/commit:assistant.message+assistant.usage+assistant.turn_end:after#1",
        ),
        "what is replaced is taken back in a unit of its own": ("replaced", "kill@0/commit:holdfast.truncated:after#1"),
        "text is shown before it is committed": ("streaming", "kill@0/commit:segments:before#1"),
        "text that was shown is thrown away": ("streaming", "kill@0/commit:segments:after#2"),
        "a tool with an unknown outcome runs again": ("tools", "kill@0/tool:append_line:after#1"),
        "an attempt is written after its effect": (
            "tools",
            "kill@0/tool:append_line:after#1",
            "kill@0/tool:note:after#1",
        ),
        "a stop ends whatever turn runs when it is heard": (
            "stop-late",
            "kill@0/put:stop:before#1",
            "kill@0/put:message:after#2",
        ),
        "the end of a task and its news are two transactions": ("task-idle", "kill@0/end_task:failed:after#1"),
        "a second keeper tells the end of a task again": ("task-idle", "pair@0/"),
        "each attempt starts a command of its own": ("task-flip", "kill@0/commit:holdfast.tool_attempt:after#1"),
        "an event is put into the outbox after its commit": (
            "webhook",
            "kill@0/commit:permission.requested:after#1",
        ),
    },
    "postgresql": {
        "commits are not fenced": (
            "tools",
            "freeze@0/commit:tool.execution_complete:before#1",
            "freeze@0/commit:tool.execution_complete:after#1",
        ),
        "a session is taken from a holder that lives": ("streaming", "pair@0/"),
        "a put is acknowledged before it is committed": ("plain", "kill@0/put:message:before#1"),
        "an act is told after it": ("entrusted", "kill@0/add_key:key:after#1"),
        "the same client id is accepted twice": ("plain", "kill@0/put:message:after#1"),
        "the end of a task and its news are two transactions": ("task-idle", "kill@0/end_task:failed:after#1"),
        "a second keeper tells the end of a task again": ("task-idle", "pair@0/"),
        "a session is run by a process without its tools": ("two-nodes", "kill@0/register:process:before#1"),
        "a process that wakes late starts a removed command": (
            "task-delete",
            "freeze@0/start_command:command:before#1",
            "freeze@0/start_command:command:before#2",
        ),
    },
}
"""A scenario, and one or two trials in it. Any other defect shows in the first of its scenarios
although nothing is killed."""


def missed(names: Sequence[str], database: Database) -> list[str]:
    """The defects among these that did not show where they are known to."""
    with contextlib.ExitStack() as around:
        scratch = around.enter_context(scratch_folder(None))
        urls = around.enter_context(postgres_trials.databases(JOBS)) if database == "postgresql" else []
        jobs = Jobs(JOBS, scratch, urls)
        around.callback(jobs.close)
        for seed in range(1, ROUNDS + 1):
            trials = (trial for name in names for trial in known_trials(name, database, seed))
            shown = {result.trial.defect for result in jobs.run(trials) if result.violations}
            names = [name for name in names if name not in shown]
    return list(names)


def known_trials(name: str, database: Database, seed: int) -> Iterator[Trial]:
    scenario, *specs = KNOWN[database].get(name, (BY_NAME[name].scenarios[0], "calm@0/"))
    for spec in specs:
        yield parse(scenario, spec, seed=seed, defect=name, database=database)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.crash.known_trials")
    parser.add_argument("--database", choices=get_args(Database), required=True)
    parser.add_argument("defects", nargs="+", choices=BY_NAME, metavar="DEFECT")
    asked = parser.parse_args()
    for found in missed(asked.defects, asked.database):
        print(found)
