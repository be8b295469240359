"""Fixtures shared with the tests of the page."""

from tests.web.conftest import browser, chromium_address, client, home, model, own_home, person, server

__all__ = ["browser", "chromium_address", "client", "home", "model", "own_home", "person", "server"]
