"""What a long-lived process shows of itself: figures on a port of their own, and spans to a collector."""

import errno
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from holdfast.app import Runtime
from holdfast.cli.errors import USAGE, WORLD, Refusal
from holdfast.config import Config
from holdfast.server.http.metrics import Metrics

log = logging.getLogger(__name__)

FINISH_SECONDS: Final = 1.0


# Figures


def runtime_metrics(runtime: Runtime) -> Metrics:
    """What there is to tell of a runtime."""
    worker = runtime.worker

    def gauges() -> Mapping[str, tuple[str, float]]:
        return {
            "holdfast_sessions_held": ("Sessions that this process runs.", worker.sessions_held),
            "holdfast_turns_running": ("Those whose turn does not wait for somebody.", worker.turns_running),
            "holdfast_lease_losses_total": ("Sessions that were taken from it.", worker.lost_leases),
            **runtime.redis_figures(),
        }

    return Metrics(runtime.observer.figures, runtime.store, runtime.clock, gauges)


@asynccontextmanager
async def metrics_endpoint(
    config: Config,
    runtime: Runtime,
    *,
    page: Callable[[], Awaitable[str]] | None = None,
    is_draining: Callable[[], bool] = lambda: False,
) -> AsyncIterator[int | None]:
    """While inside, /healthz, /readyz and /metrics are on the metrics port, if there is to be one; which it is."""
    if config.metrics_port is None:
        yield None
        return
    from holdfast.server.http.listener import HttpListener, bind  # deferred: a web server takes a while to import
    from holdfast.server.http.monitor import Monitor

    try:
        bound = bind(config.metrics_host, config.metrics_port)
    except OSError as error:
        raise Refusal(
            "address_not_usable",
            f"Can't show figures on {config.metrics_host}, port {config.metrics_port}: {error.strerror or error}.",
            exit_code=WORLD if error.errno == errno.EADDRINUSE else USAGE,
        ) from None
    monitor = Monitor(
        page or runtime_metrics(runtime).page,
        runtime.store,
        is_draining=is_draining,
        redis_state=lambda: runtime.redis_state,
    )
    listener = HttpListener(monitor)
    await listener.listen(bound)
    try:
        yield int(bound.getsockname()[1])
    finally:
        listener.stop_accepting()
        await listener.finish(seconds=FINISH_SECONDS)


# Spans


@contextmanager
def span_export(service: str, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """While inside, spans are sent where the variables of OpenTelemetry say, if they say anything."""
    if not wants_spans(environ):
        yield
        return
    try:
        from holdfast.observability.exporter import Exporter  # deferred: few need it, and not everybody has it
    except ImportError:
        problem = "Traces are asked for, but OpenTelemetry's SDK is not here: pip install 'holdfast[otel]'."
        log.warning("%s", problem)
        print(f"holdfast: {problem}", file=sys.stderr)
        yield
        return
    exporter = Exporter(service, environ)
    try:
        yield
    finally:
        exporter.stop()


def wants_spans(environ: Mapping[str, str]) -> bool:
    """Whether the variables of OpenTelemetry ask for traces over OTLP."""
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter not in ("", "otlp"):
        return False
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return exporter == "otlp" or any(environ.get(name, "").strip() for name in endpoints)
