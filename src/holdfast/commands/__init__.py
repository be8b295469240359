"""Shell commands that outlive the runtime: a supervisor process runs them and keeps output and outcome on disk.

`commands.py` is the runtime's side, `supervisor.py` the other; they share a folder, and talk over a socket in it.
"""
