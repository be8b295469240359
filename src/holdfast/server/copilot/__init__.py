"""The Copilot SDK protocol: JSON-RPC over stdio or TCP, as the public client libraries speak it."""
