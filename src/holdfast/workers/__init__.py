"""Workers claim sessions, run them, keep their leases, and hand the sessions over."""
