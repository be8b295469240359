"""`holdfast doctor`."""

import typer

from holdfast.cli.options import JsonOption, RuntimeOptions, command, example

app = typer.Typer()


@app.command(epilog=example("doctor --model openai/llama3 --model-base-url http://127.0.0.1:11434/v1"))
@command
async def doctor(at: RuntimeOptions, *, as_json: JsonOption = False) -> int:
    """Check all that Holdfast needs."""
    from holdfast.cli.doctor import examine

    return await examine(at.config(), as_json=as_json)
