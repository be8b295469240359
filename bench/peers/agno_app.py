"""Agno's AgentOS with SQLite, as its documentation has it: `python agno_app.py MODEL_URL DATABASE SOCKET`.

It is run in an environment of its own, where Holdfast is not installed.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"
# Only the environment of the peers has these packages.

import socket
import sys

import uvicorn
from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.openai.like import OpenAILike
from agno.os import AgentOS
from fastapi import FastAPI


def application(model_url: str, database: str) -> FastAPI:
    agent = Agent(
        id="bench",
        model=OpenAILike(id="bench", base_url=model_url, api_key="none"),
        db=SqliteDb(db_file=database),
        telemetry=False,
    )
    return AgentOS(agents=[agent], telemetry=False).get_app()


if __name__ == "__main__":
    config = uvicorn.Config(
        application(sys.argv[1], sys.argv[2]), loop="uvloop", http="httptools", log_level="warning", access_log=False
    )
    uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[3]))])
