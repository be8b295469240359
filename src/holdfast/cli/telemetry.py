"""The telemetry of a long-lived process: metrics on a port of their own, and spans sent to a collector."""

import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from holdfast.app import Runtime
from holdfast.cli.errors import address_refusal
from holdfast.config import Config
from holdfast.server.http.metrics import Metrics

log = logging.getLogger(__name__)

FINISH_SECONDS: Final = 1.0


# Metrics


def runtime_metrics(runtime: Runtime) -> Metrics:
    """The metrics of a runtime and of the process around it."""
    worker = runtime.worker

    def gauges() -> Mapping[str, tuple[str, float]]:
        return {
            "holdfast_sessions_held": ("Sessions that this process runs.", worker.sessions_held),
            "holdfast_turns_running": (
                "Sessions whose turn waits for no person or client.",
                worker.turns_running,
            ),
            "holdfast_lease_losses_total": (
                "Sessions that were taken from this process.",
                worker.lost_leases,
            ),
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
    """Serve /healthz, /readyz and /metrics on the metrics port, if one is set, and yield its number."""
    if config.metrics_port is None:
        yield None
        return
    from holdfast.server.http.listener import HttpListener, bind  # deferred: a web server takes a while to import
    from holdfast.server.http.monitor import Monitor

    try:
        bound = bind(config.metrics_host, config.metrics_port)
    except OSError as error:
        raise address_refusal(
            error, purpose="serve metrics", host=config.metrics_host, port=config.metrics_port
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
    """Send spans to the collector that the variables of OpenTelemetry name, if they name one."""
    if not wants_spans(environ):
        yield
        return
    try:
        from holdfast.observability.exporter import Exporter  # deferred: an extra, which few install
    except ImportError:
        problem = "Traces are asked for, but OpenTelemetry's SDK is not installed: pip install 'holdfast[otel]'."
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
