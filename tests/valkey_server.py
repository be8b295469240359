"""A real Valkey server for a test, from the kit."""

from proof.valkey_server import Valkey, valkey_server

__all__ = ["Valkey", "valkey_server"]
