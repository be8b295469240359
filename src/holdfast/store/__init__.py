"""The store: the seam between the runtime and its database, and its implementations on SQLite and PostgreSQL."""
