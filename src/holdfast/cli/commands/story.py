"""`holdfast story`."""

from enum import StrEnum
from typing import Annotated

import typer

from holdfast.cli.options import example

app = typer.Typer()


class StoryName(StrEnum):
    CRASHES = "crashes"
    BUILD = "build"


@app.command(
    epilog=example("story build")
    + """

\b
crashes  an approval and an answer, cut by kill -9, that go on
build    a slow command that outlives its runtime, and reports"""
)
def story(which: Annotated[StoryName, typer.Argument(help="Which of the two.")] = StoryName.CRASHES) -> None:
    """Half a minute of crashes, with nothing lost.

    The processes are real, and so is every kill. Exits with 0 if the story held to its end.
    """
    from holdfast.cli import build_story, crash_story
    from holdfast.cli.process import run_to_end

    raise typer.Exit(run_to_end(build_story.tell if which is StoryName.BUILD else crash_story.tell))
