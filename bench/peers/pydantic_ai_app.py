"""pydantic-ai behind FastAPI, streamed as its documentation has it: `python pydantic_ai_app.py MODEL_URL SOCKET`.

Nothing is kept, and nothing is held back to be sent with what comes next. It runs in an environment of its own.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"
# Only the environment of the peers has these packages.

import socket
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Asked(BaseModel):
    text: str


def application(model_url: str) -> FastAPI:
    agent = Agent(OpenAIChatModel("bench", provider=OpenAIProvider(base_url=model_url, api_key="none")))
    app = FastAPI()

    async def told(text: str) -> AsyncIterator[str]:
        async with agent.run_stream(text) as result:
            async for delta in result.stream_text(delta=True, debounce_by=None):
                yield f"data: {delta}\n\n"

    @app.post("/stream")
    async def stream(asked: Asked) -> StreamingResponse:
        return StreamingResponse(told(asked.text), media_type="text/event-stream")

    return app


if __name__ == "__main__":
    config = uvicorn.Config(
        application(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning", access_log=False
    )
    uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[2]))])
