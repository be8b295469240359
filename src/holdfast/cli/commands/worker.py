"""`holdfast worker`."""

import typer

from holdfast.cli.options import ServiceOptions, command, example

app = typer.Typer()


@app.command(
    epilog=example("worker --database sqlite:////srv/holdfast.db --model openai/llama3 --concurrency 20")
    + "\nIt serves no clients: they use `holdfast serve` on the same database."
)
@command
async def worker(at: ServiceOptions) -> int:
    """Run the sessions of a database that other processes serve."""
    from holdfast.cli.worker import work

    return await work(at.config())
