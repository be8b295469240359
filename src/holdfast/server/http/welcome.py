"""The page that one meets first, and the link with a token that lets a browser in."""

import base64
import hashlib
import html
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Shown
from holdfast.server.http.service import Service
from holdfast.server.http.start_token import StartToken
from holdfast.version import __version__

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; color: #1b1f24;
  background: #fff }
pre { background: #f3f4f6; padding: 1rem; overflow-x: auto; border-radius: 6px }
@media (prefers-color-scheme: dark) {
  body { color: #e6e8eb; background: #14171a } pre { background: #1f2428 } a { color: #8ab4ff }
}
"""

_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS: Final = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}

_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Holdfast</title><style>{style}</style></head>
<body>
<h1>Holdfast {version}</h1>
<p>This server runs agents whose work survives: the connection, the process, the machine.</p>
<p>It is used over HTTP. What it offers is described in <a href="/v1/openapi.json">/v1/openapi.json</a>. Every request
shows who asks, with the header <code>Authorization: Bearer …</code>: {how}.</p>
<pre>curl -H "Authorization: Bearer $TOKEN" {url}/v1/sessions</pre>
</body>
</html>
"""


def routes(service: Service) -> list[Route]:
    return routes_of(WelcomeRoutes(service).endpoints())


class WelcomeRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/",
                handler=self.welcome,
                summary="A page for people",
                answers={200: None, 303: None},
                media_type="text/html",
                is_public=True,
            )
        ]

    async def welcome(self, request: Request) -> Response:
        identities = self._service.identities
        token = request.query_params.get("token")
        if token is not None and isinstance(identities, StartToken):
            if await identities.identify(Shown(bearer=token), changes=False) is None:
                raise ApiError(401, "not_signed_in", "That link is of another start of this server; take the newest.")
            response = RedirectResponse("/", 303, {"cache-control": "no-store"})
            response.set_cookie(identities.cookie_name, token, httponly=True, samesite="strict", path="/")
            return response
        is_local = isinstance(identities, StartToken)
        how = "the token that <code>holdfast serve</code> printed" if is_local else "an API key"
        page = _PAGE.format(style=_STYLE, version=html.escape(__version__), how=how, url=html.escape(_url(request)))
        return Response(page, 200, HEADERS, media_type="text/html")


def _url(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}"
