"""`holdfast budgets`."""

from typing import Annotated

import typer

from holdfast.cli.options import DatabaseOptions, JsonOption, command, example

app = typer.Typer(
    name="budgets",
    help="Show, set and reset the budgets of owners.",
    epilog=example("budgets set ada --tier pro --from 2027-01-01"),
    no_args_is_help=True,
)

OwnerArgument = Annotated[str, typer.Argument(metavar="OWNER", help="Whose budget.")]


@app.command("list", epilog=example("budgets list --near 50"))
@command
async def list_owners(
    at: DatabaseOptions,
    *,
    near: Annotated[
        float, typer.Option("--near", min=0, max=100, help="Only those who have used so many percent.")
    ] = 80.0,
    as_json: JsonOption = False,
) -> None:
    """List the owners who are near a limit, the nearest first."""
    from holdfast.cli import budgets

    await budgets.list_owners(at.config(), near, as_json=as_json)


@app.command("show", epilog=example("budgets show ada"))
@command
async def show_budget(at: DatabaseOptions, *, owner: OwnerArgument, as_json: JsonOption = False) -> None:
    """Show the limits of an owner, what is planned, and how much is used."""
    from holdfast.cli import budgets

    await budgets.show_budget(at.config(), owner, as_json=as_json)


@app.command("set", epilog=example("budgets set ada --tier pro --week 20"))
@command
async def set_budget(
    at: DatabaseOptions,
    *,
    owner: OwnerArgument,
    tier: Annotated[str, typer.Option("--tier", help="A budget tier of HOLDFAST_BUDGET_TIERS.")] = "",
    day: Annotated[
        str | None, typer.Option("--day", metavar="DOLLARS|none", help="In place of the tier's limit of a day.")
    ] = None,
    week: Annotated[
        str | None, typer.Option("--week", metavar="DOLLARS|none", help="In place of the tier's limit of a week.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="DATE", help="The first UTC day; at once if left out."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set the limits of an owner, in place of all that were set. What is left out is that of the tier."""
    from holdfast.cli import budgets

    await budgets.set_budget(at.config(), owner, tier=tier, day=day, week=week, start=start, as_json=as_json)


@app.command("reset", epilog=example("budgets reset ada"))
@command
async def reset_budget(at: DatabaseOptions, *, owner: OwnerArgument, as_json: JsonOption = False) -> None:
    """Give an owner the day back, and the week one day's allowance."""
    from holdfast.cli import budgets

    await budgets.reset_budget(at.config(), owner, as_json=as_json)
