"""Runs one held session: decide, call the model, run tools, wait."""
