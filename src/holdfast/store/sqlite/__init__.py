"""The store on SQLite: one file, many processes on one machine, no other service."""
