"""`holdfast files`."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import IdArgument, JsonOption, TargetOptions, command, example

app = typer.Typer(
    name="files",
    help="Upload, list, download, keep and delete files.",
    epilog=example("files add report.pdf"),
    no_args_is_help=True,
)

SessionOption = Annotated[str | None, typer.Option("--session", metavar="ID", help="The files of this session.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="They stay without a session that uses them.")]
PathsArgument = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of this machine.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of the terminal.")
]


@app.command("add", epilog=example("files add report.pdf photo.png"))
@command
async def add_files(
    at: TargetOptions, *, paths: PathsArgument, keep: KeepOption = False, as_json: JsonOption = False
) -> None:
    """Upload files. Without --keep, a file that no session uses goes after a day."""
    from holdfast.cli import files

    await files.add_files(at.target(), paths, keep=keep, as_json=as_json)


@app.command("list", epilog=example("files list --session 3f2a9c1b"))
@command
async def list_files(at: TargetOptions, *, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """List files, newest first. With --session, those of its messages and those that its tools made."""
    from holdfast.cli import files

    await files.list_files(at.target(), session, as_json=as_json)


@app.command("get", epilog=example("files get 3f2a9c1b -o report.pdf"))
@command
async def get_file(at: TargetOptions, *, file: IdArgument, output: OutputOption = None) -> None:
    """Print the content of a file, or write it to a new file."""
    from holdfast.cli import files

    await files.get_file(at.target(), file, output)


@app.command("keep", epilog=example("files keep 3f2a9c1b"))
@command
async def keep_file(at: TargetOptions, *, file: IdArgument) -> None:
    """Keep a file without a session that uses it."""
    from holdfast.cli import files

    await files.keep_file(at.target(), file)


@app.command("delete", epilog=example("files delete 3f2a9c1b"))
@command
async def delete_file(at: TargetOptions, *, file: IdArgument) -> None:
    """Delete a file, also from the sessions that use it."""
    from holdfast.cli import files

    await files.delete_file(at.target(), file)
