"""The store on PostgreSQL, for many processes on many machines."""
