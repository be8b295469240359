"""The crash campaign: real processes killed at every durable write, and the invariants of the databases that they
leave."""
