"""`holdfast cluster`."""

from typing import Annotated

import typer

from holdfast.cli.options import DatabaseOptions, JsonOption, RedisOption, command, example

app = typer.Typer(
    name="cluster",
    help="See which processes work on a database, and what waits.",
    epilog=example("cluster status --watch"),
    no_args_is_help=True,
)


@app.command("status", epilog=example("cluster status --check --max-wait 30"))
@command
async def status(
    at: DatabaseOptions,
    *,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if there is a problem.")] = False,
    max_wait: Annotated[
        float, typer.Option("--max-wait", metavar="SECONDS", min=0, help="A session that waits longer is a problem.")
    ] = 60.0,
    redis: RedisOption = None,
) -> int:
    """Show which processes work on a database, and what waits for them. Changes nothing."""
    from holdfast.cli.cluster import show_cluster

    return await show_cluster(at.config(redis=redis), as_json=as_json, watch=watch, check=check, max_wait=max_wait)
