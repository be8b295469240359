"""What the security tests share with those of the command line, of HTTP and of the page."""

from tests.cli.conftest import place
from tests.http.conftest import client, model, own_model, own_place, server

__all__ = ["client", "model", "own_model", "own_place", "place", "server"]
