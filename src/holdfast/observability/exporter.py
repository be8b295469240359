"""Sends spans to a collector over HTTP, configured by OpenTelemetry's environment variables.

Only processes that Holdfast itself starts use it; a program that embeds Holdfast brings its own tracer provider. It
needs the extra `otel`. Sampling is by trace, and a turn has the same trace id in every process, so that each turn is
sampled whole or not at all.
"""

import threading
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased

from holdfast.version import __version__

SHUTDOWN_SECONDS: Final = 3.0
"""How long a process that shuts down waits for the collector. Spans that are still unsent then are lost."""


class Exporter:
    """Exports the spans of this process, from its construction until `stop`."""

    def __init__(self, service: str, environ: Mapping[str, str]) -> None:
        self._provider = TracerProvider(
            resource=_resource(service, environ), sampler=sampler(environ), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(self._provider)

    def stop(self) -> None:
        """Flush the unsent spans, for at most `SHUTDOWN_SECONDS`: a dead collector must not hold up the shutdown."""
        shutdown = threading.Thread(target=self._provider.shutdown, daemon=True)
        shutdown.start()
        shutdown.join(SHUTDOWN_SECONDS)


def _resource(service: str, environ: Mapping[str, str]) -> Resource:
    attributes = {"service.version": __version__}
    if not environ.get("OTEL_SERVICE_NAME") and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes[SERVICE_NAME] = service
    return Resource.create(attributes)


def sampler(environ: Mapping[str, str]) -> Sampler:
    """The sampler that OTEL_TRACES_SAMPLER names. No process records the parent span of a turn, so the sampler for
    root spans decides about turns as well."""
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    match name.removeprefix("parentbased_"):
        case "always_off":
            root: Sampler = ALWAYS_OFF
        case "traceidratio":
            root = TraceIdRatioBased(_ratio(environ.get("OTEL_TRACES_SAMPLER_ARG", "")))
        case _:
            root = ALWAYS_ON
    return ParentBased(root, local_parent_sampled=root) if name.startswith("parentbased_") else root


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        return 1.0
    return ratio if 0 <= ratio <= 1 else 1.0
