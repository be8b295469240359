"""`holdfast webhooks`."""

from typing import Annotated

import typer

from holdfast.cli.options import IdArgument, JsonOption, TargetOptions, command, example

app = typer.Typer(
    name="webhooks",
    help="Send events to URLs, and see what was delivered.",
    epilog=example("webhooks create https://example.org/hook --event turn.ended"),
    no_args_is_help=True,
)

EventOption = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="NAME",
        help="turn.ended, request.opened, task.ended or limit.reached. Repeatable. Default: all.",
    ),
]
DescriptionOption = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="A line for people.")]
DeliveryArgument = Annotated[str, typer.Argument(metavar="DELIVERY", help="The id of the delivery, or its beginning.")]


@app.command("list", epilog=example("webhooks list"))
@command
async def list_webhooks(at: TargetOptions, *, as_json: JsonOption = False) -> None:
    """List the webhooks, with what is pending."""
    from holdfast.cli import webhooks

    await webhooks.list_webhooks(at.target(), as_json=as_json)


@app.command("create", epilog=example("webhooks create https://example.org/hook --event turn.ended"))
@command
async def create_webhook(
    at: TargetOptions,
    *,
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="The URL that gets the events, with https.")],
    events: EventOption = None,
    description: DescriptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have events sent to a URL. Its secret goes to stdout, and is not shown again."""
    from holdfast.cli import webhooks

    await webhooks.create_webhook(at.target(), receiver, events=events, description=description or "", as_json=as_json)


@app.command("change", epilog=example("webhooks change 3f2a9c1b --pause"))
@command
async def change_webhook(
    at: TargetOptions,
    *,
    webhook: IdArgument,
    receiver: Annotated[str | None, typer.Option("--to", metavar="RECEIVER", help="Another URL.")] = None,
    events: EventOption = None,
    description: DescriptionOption = None,
    active: Annotated[
        bool | None, typer.Option("--resume/--pause", help="A paused webhook gets no new events.")
    ] = None,
) -> None:
    """Change a webhook. What is pending is attempted at once."""
    from holdfast.cli import webhooks

    await webhooks.change_webhook(
        at.target(), webhook, url=receiver, events=events, description=description, active=active
    )


@app.command("delete", epilog=example("webhooks delete 3f2a9c1b"))
@command
async def delete_webhook(at: TargetOptions, *, webhook: IdArgument) -> None:
    """Delete a webhook and its deliveries, also those that are pending."""
    from holdfast.cli import webhooks

    await webhooks.delete_webhook(at.target(), webhook)


@app.command("rotate", epilog=example("webhooks rotate 3f2a9c1b"))
@command
async def rotate_secret(at: TargetOptions, *, webhook: IdArgument, as_json: JsonOption = False) -> None:
    """Give a webhook a new secret. For a day, requests are signed with the old one too."""
    from holdfast.cli import webhooks

    await webhooks.rotate_secret(at.target(), webhook, as_json=as_json)


@app.command("test", epilog=example("webhooks test 3f2a9c1b"))
@command
async def test_webhook(at: TargetOptions, *, webhook: IdArgument) -> None:
    """Send a test, and print the answer.

    Exits with 1 if the receiver did not accept it.
    """
    from holdfast.cli import webhooks

    await webhooks.test_webhook(at.target(), webhook)


@app.command("deliveries", epilog=example("webhooks deliveries 3f2a9c1b --state given_up"))
@command
async def list_deliveries(
    at: TargetOptions,
    *,
    webhook: IdArgument,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help="Only pending, delivered or given_up ones.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=200, help="At most so many.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the deliveries of a webhook with their last answers, latest first."""
    from holdfast.cli import webhooks

    await webhooks.list_deliveries(at.target(), webhook, state=state, limit=limit, as_json=as_json)


@app.command("send", epilog=example("webhooks send 3f2a9c1b 77aa01cd"))
@command
async def send_again(at: TargetOptions, *, webhook: IdArgument, delivery: DeliveryArgument) -> None:
    """Send a delivery again: a pending one now, one that has ended once more."""
    from holdfast.cli import webhooks

    await webhooks.send_again(at.target(), webhook, delivery)
