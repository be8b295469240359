"""What the security tests share with those of the command line, of HTTP and of the page."""

from tests.cli.conftest import place

__all__ = ["place"]
