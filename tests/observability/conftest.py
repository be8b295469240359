"""An OpenTelemetry provider that keeps spans in memory, for one test at a time."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """The exported spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def all(self) -> list[ReadableSpan]:
        """All finished spans, in the order in which they ended."""
        return list(self._exporter.get_finished_spans())

    def text(self) -> str:
        """All that was exported, as JSON text."""
        return "\n".join(span.to_json() for span in self.all())


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    kept = Spans()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", kept.provider)  # `set_tracer_provider` can't be undone
    yield kept
    kept.provider.shutdown()
