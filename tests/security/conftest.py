"""Fixtures shared with the tests of the command line, of commands, of HTTP and of the page."""

from tests.cli.conftest import place
from tests.commands.conftest import commands, root, sandbox
from tests.http.conftest import client, model, own_model, own_place, server

__all__ = ["client", "commands", "model", "own_model", "own_place", "place", "root", "sandbox", "server"]
