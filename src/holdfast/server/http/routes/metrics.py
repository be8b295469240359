"""The metrics of the process, for Prometheus."""

from starlette.responses import Response

from holdfast.observability.exposition import CONTENT_TYPE
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint


@endpoint("GET", "/metrics", summary="Metrics for Prometheus; for admins", media_type="text/plain")
async def show(call: HttpCall) -> Response:
    call.check_admin()
    return Response(await call.service.metrics_page(), media_type=CONTENT_TYPE)
