"""Shell commands that outlive the runtime: a supervisor process runs them and keeps their output and outcome on disk.

`commands.py` is the runtime's side and `supervisor.py` is the supervisor's. They share a folder and talk over a socket
in it.
"""
