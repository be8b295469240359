"""One session that outgrows its model's window again and again, while its process is killed: nothing is forgotten."""
