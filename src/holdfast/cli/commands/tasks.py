"""`holdfast tasks`."""

from typing import Annotated

import typer

from holdfast.cli.options import IdArgument, JsonOption, OfSessionOption, TargetOptions, command, example

app = typer.Typer(
    name="tasks",
    help="List, show, follow and kill the commands that sessions run.",
    epilog=example("tasks tail t3f2a9c1"),
    no_args_is_help=True,
)


@app.command("list", epilog=example("tasks list --all"))
@command
async def list_tasks(
    at: TargetOptions,
    *,
    session: OfSessionOption = None,
    ended_too: Annotated[bool, typer.Option("--all", help="Also those that ended within the last day.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the running commands of all sessions."""
    from holdfast.cli import tasks

    await tasks.list_tasks(at.target(), session, ended_too=ended_too, as_json=as_json)


@app.command("show", epilog=example("tasks show t3f2a9c1"))
@command
async def show_task(at: TargetOptions, *, task: IdArgument, as_json: JsonOption = False) -> None:
    """Show all that is known of a task, and the end of its output."""
    from holdfast.cli import tasks

    await tasks.show_task(at.target(), task, as_json=as_json)


@app.command(
    "tail",
    epilog=example("tasks tail t3f2a9c1 --bytes 100000 > build.log")
    + "\nCtrl-C leaves, and the task runs on. Its output comes as it is, as with `tail -f`.",
)
@command
async def tail_task(
    at: TargetOptions,
    *,
    task: IdArgument,
    count: Annotated[int, typer.Option("--bytes", metavar="N", min=0, help="Begin so many bytes before now.")] = 4096,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Follow the output until the task ends.")] = True,
) -> None:
    """Print the output of a task until it ends. How it ended is printed to stderr."""
    from holdfast.cli import tasks

    await tasks.tail_task(at.target(), task, count=count, follow=follow)


@app.command("kill", epilog=example("tasks kill t3f2a9c1"))
@command
async def kill_task(at: TargetOptions, *, task: IdArgument) -> None:
    """End a task and all processes that it started. Its session gets the news.

    Exits with 1 if a process is known to have escaped, and names it.
    """
    from holdfast.cli import tasks

    await tasks.kill_task(at.target(), task)
