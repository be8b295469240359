"""`holdfast model-server`."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import example

app = typer.Typer()


@app.command("model-server", epilog=example("model-server --script answers.json --port 8123"))
def model_server(
    script: Annotated[Path | None, typer.Option("--script", help="A JSON script; the demo's if left out.")] = None,
    host: Annotated[str, typer.Option("--host")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 0,
    window: Annotated[
        int | None, typer.Option("--window", min=1, help="Refuse calls of more tokens than this, as estimated.")
    ] = None,
) -> None:
    """Serve a scripted model over HTTP.

    For tests, and for trying things out. It speaks chat completions at /v1/chat/completions and Anthropic's Messages at
    /v1/messages.
    """
    from holdfast.cli.model_server import serve

    raise typer.Exit(serve(script, host, port, window))
