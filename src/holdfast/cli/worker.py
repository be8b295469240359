"""`holdfast worker`: runs sessions and serves nobody; more hands for a database that others serve.

It ends as a server does: it claims nothing more, sessions come to the end of their step or are handed over, and others
go on with them. A second signal ends it at once, which loses nothing either.
"""

import asyncio
import os
import sys

from holdfast.app import Runtime
from holdfast.cli.ending import heed_signals, until_ended
from holdfast.cli.monitoring import monitored, traced
from holdfast.cli.opening import log_of_server, warn_without_redis
from holdfast.config import Config
from holdfast.observability.logs import hide_in_logs
from holdfast.version import __version__


async def work(config: Config) -> int:
    """Until somebody ends it."""
    log_of_server(config)
    warn_without_redis(config)
    stopping = heed_signals()
    with traced("holdfast-worker"):
        await _work(config, stopping)
    _say("Ended.")
    return 0


async def _work(config: Config, stopping: asyncio.Event) -> None:
    opened = Runtime(config=config, role="worker")
    async with opened as runtime, monitored(config, runtime, is_draining=stopping.is_set) as port:
        hide_in_logs(runtime.shell.desk.redaction.text)
        _say_hello(config)
        if port is not None:
            _say(f"Figures are on port {port}: /metrics, /healthz, /readyz.")
        await until_ended(stopping, runtime)
        held = runtime.worker.sessions_held
        if held:
            _say(f"Ending: {held} session(s) come to the end of their step, or are handed over.")
        await runtime.close(grace_seconds=config.drain_seconds)


def _say_hello(config: Config) -> None:
    _say(f"Holdfast {__version__} works on {config.database_shown} with the model {config.model}.")
    _say(f"It runs at most {config.max_sessions_per_process} sessions at a time.")
    _say("Hints go through Redis." if config.redis else "Hints go through the database.")
    _say("End it with Ctrl-C. Whatever runs then goes on in another process, or when one is started again.")


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Nobody listens; we work all the same.
