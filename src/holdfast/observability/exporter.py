"""Sends spans to a collector, over HTTP, as the variables of OpenTelemetry say. Only processes that Holdfast itself
starts do this; a program that embeds it brings its own provider. It needs the extra `otel`.

Sampling: the trace of a turn is the same in every process, so a share of the traces is a share of the turns, whole.
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
"""What a process that ends waits for a collector. What was not sent then is lost."""


class Exporter:
    """Spans of this process are sent from when it is made until `stop`."""

    def __init__(self, service: str, environ: Mapping[str, str]) -> None:
        self._provider = TracerProvider(
            resource=_resource(service, environ), sampler=sampler(environ), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(self._provider)

    def stop(self) -> None:
        """Send what is left, but wait no longer than a moment: a collector that is gone must not keep us."""
        stopping = threading.Thread(target=self._provider.shutdown, daemon=True)
        stopping.start()
        stopping.join(SHUTDOWN_SECONDS)


def _resource(service: str, environ: Mapping[str, str]) -> Resource:
    attributes = {"service.version": __version__}
    if not environ.get("OTEL_SERVICE_NAME") and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes[SERVICE_NAME] = service
    return Resource.create(attributes)


def sampler(environ: Mapping[str, str]) -> Sampler:
    """As OTEL_TRACES_SAMPLER says. A turn has a parent that no process recorded, and so is a beginning in itself."""
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
