"""A store in memory, with the semantics of the real ones: it passes the same conformance suite."""
