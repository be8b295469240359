"""Several real processes on one database: how they are started, and the facts that are recorded about each."""
