"""Keys under which this surface keeps values in the ASGI scope of a request."""

from typing import Final

IDENTITY: Final = "holdfast.identity"
"""The caller's `Identity`, set by the access gate."""

ROUTE: Final = "holdfast.route"
"""The template of the matched path, which holds no ids or names of users."""

REQUEST_SPAN: Final = "holdfast.span"
"""The request's span, where traces are exported."""
