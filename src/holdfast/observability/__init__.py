"""What can be seen of a process from outside: figures, spans of its turns, and lines of its log."""
