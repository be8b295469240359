"""Every verb that a surface may call, once, and how a session is read."""
