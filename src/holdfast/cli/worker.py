"""`holdfast worker`: runs the sessions of a database that other processes serve.

On the first signal it drains: it claims no more sessions, and those it holds reach the end of their step or are handed
over. A second signal ends it at once, which loses nothing either.
"""

import asyncio

from holdfast.app import Runtime
from holdfast.cli.process import print_line, until_stopped, watch_signals
from holdfast.cli.runtime import log_service
from holdfast.cli.settings import warn_without_redis
from holdfast.cli.telemetry import metrics_endpoint, span_export
from holdfast.config import Config
from holdfast.observability.logs import hide_in_logs
from holdfast.version import __version__


async def work(config: Config) -> int:
    """Run sessions until a signal ends it."""
    log_service(config)
    warn_without_redis(config)
    stopping = watch_signals()
    with span_export("holdfast-worker"):
        await _work(config, stopping)
    print_line("Ended.")
    return 0


async def _work(config: Config, stopping: asyncio.Event) -> None:
    async with (
        Runtime(config=config, role="worker") as runtime,
        metrics_endpoint(config, runtime, is_draining=stopping.is_set) as port,
    ):
        hide_in_logs(runtime.shell.desk.redaction.text)
        _print_greeting(config)
        if port is not None:
            print_line(f"Metrics are on port {port}: /metrics, /healthz, /readyz.")
        await until_stopped(stopping, runtime)
        held = runtime.worker.sessions_held
        if held:
            print_line(f"Ending: {held} session(s) end their step, or are handed over.")
        await runtime.close(grace_seconds=config.drain_seconds)


def _print_greeting(config: Config) -> None:
    print_line(f"Holdfast {__version__} works on {config.database_shown} with the model {config.model}.")
    if config.keyed_model is not None:
        print_line(config.keyed_model.explain())
    print_line(f"It runs at most {config.max_sessions_per_process} sessions at a time.")
    print_line("Hints go through Redis." if config.redis else "Hints go through the database.")
    print_line("End it with Ctrl-C. Turns that run then continue in another process, or when one is started again.")
