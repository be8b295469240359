"""Observability of a process: its metrics, the spans of its turns, and its log."""
