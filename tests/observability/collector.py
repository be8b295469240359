"""A collector for OTLP over HTTP: decodes and keeps the spans that exporters send."""

import asyncio
import gzip
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.http.world import patience


class Received(NamedTuple):
    name: str
    trace: str
    span: str
    parent: str
    attributes: dict[str, Any]
    links: tuple[str, ...]
    """The ids of the linked spans."""
    service: str


class Collector:
    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.bodies = b""
        self._arrived = asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    @property
    def environ(self) -> dict[str, Any]:
        """The environment of a process that exports its spans to this collector, every 50 ms."""
        host, port = self._runner.addresses[0][:2]
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{host}:{port}", "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with patience():
            while not holds():
                self._arrived.clear()
                await self._arrived.wait()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("content-encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.bodies += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = str(_values(resource.resource.attributes)["service.name"])
            for scope in resource.scope_spans:
                self.spans += [
                    Received(
                        name=span.name,
                        trace=span.trace_id.hex(),
                        span=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        attributes=_values(span.attributes),
                        links=tuple(link.span_id.hex() for link in span.links),
                        service=service,
                    )
                    for span in scope.spans
                ]
        self._arrived.set()
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, str(kind))
