"""Runs one held session: decides, calls the model, runs the tools, waits."""
