"""`holdfast serve`."""

from typing import Annotated

import typer

from holdfast.cli.options import ServiceOptions, command, example

app = typer.Typer()


@app.command(
    epilog=example("serve --model openai/llama3 --model-base-url http://127.0.0.1:11434/v1")
    + "\nFor others too: holdfast keys create --name laptop --owner ada; holdfast serve --auth keys --host 0.0.0.0"
)
@command
async def serve(
    at: ServiceOptions,
    *,
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on (127.0.0.1).")] = None,
    port: Annotated[str | None, typer.Option("--port", metavar="N", help="The port (8787); 0: a free one.")] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            "--auth", metavar="none|keys", help="none: for you, on this machine. keys: for all who have a key."
        ),
    ] = None,
    no_work: Annotated[
        bool, typer.Option("--no-work", help="Only serve; `holdfast worker` runs the sessions.")
    ] = False,
) -> int:
    """Serve sessions over HTTP, and run them."""
    from holdfast.cli.serve import serve

    return await serve(at.config(host=host, port=port, auth=auth), works=not no_work)
