"""`holdfast webhooks`: registers, changes, tests and deletes webhooks, and shows their deliveries."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final, cast, get_args

import msgspec

from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.escapes import visible
from holdfast.cli.lookup import check_prefix, only_match
from holdfast.cli.session_lines import when
from holdfast.cli.target import Target, open_home
from holdfast.protocol.webhook import (
    ShownDeliveryState,
    WebhookDeliveryView,
    Webhooks,
    WebhookView,
    WebhookWithSecret,
)
from holdfast.server.errors import NotFound

TEST_SECONDS: Final = 20.0
"""How long the outcome of a test is awaited: longer than an attempt may take."""

LOOK_SECONDS: Final = 0.2

PAGE: Final = 200


async def list_webhooks(target: Target, *, as_json: bool) -> None:
    async with open_home(target) as home:
        found = await home.webhooks.all()
    for webhook in found:
        print(msgspec.json.encode(webhook).decode() if as_json else _line(webhook))
    if not found and not as_json:
        print("There are no webhooks. Make one with `holdfast webhooks create URL`.")


async def create_webhook(
    target: Target, url: str, *, events: Sequence[str] | None, description: str, as_json: bool
) -> None:
    """Make a webhook. Its secret goes to stdout alone, so that a script can capture it."""
    async with open_home(target) as home:
        made = await home.webhooks.create(url, events=events or None, description=description)
    _print_secret(made, as_json=as_json)


async def change_webhook(
    target: Target,
    wanted: str,
    url: str | None,
    *,
    events: Sequence[str] | None,
    description: str | None,
    active: bool | None,
) -> None:
    async with open_home(target) as home:
        found = await _find(home.webhooks, wanted)
        changed = await home.webhooks.change(
            found.id, url=url, events=events or None, description=description, active=active
        )
    print(_line(changed))


async def delete_webhook(target: Target, wanted: str) -> None:
    async with open_home(target) as home:
        found = await _find(home.webhooks, wanted)
        await home.webhooks.delete(found.id)
    print(f"Deleted the webhook {found.id}, with its deliveries.")


async def rotate_secret(target: Target, wanted: str, *, as_json: bool) -> None:
    async with open_home(target) as home:
        found = await _find(home.webhooks, wanted)
        made = await home.webhooks.rotate(found.id)
    _print_secret(made, as_json=as_json)


async def test_webhook(target: Target, wanted: str) -> None:
    """Send a test, and wait for its outcome."""
    async with open_home(target) as home:
        found = await _find(home.webhooks, wanted)
        sent = await home.webhooks.test(found.id)
        try:
            async with asyncio.timeout(TEST_SECONDS):
                while sent.state == "pending":
                    await asyncio.sleep(LOOK_SECONDS)
                    sent = await home.webhooks.delivery(found.id, sent.id)
        except TimeoutError:
            message = "No process has sent the test yet. Is a server running?"
            raise Refusal("test_pending", message, exit_code=WORLD) from None
    if sent.state != "delivered":
        raise Refusal("test_failed", f"The receiver did not accept the test: {_answer(sent)}.", exit_code=WORLD)
    print(f"The receiver accepted the test: {_answer(sent)}.")


async def list_deliveries(target: Target, wanted: str, *, state: str | None, limit: int, as_json: bool) -> None:
    chosen = _checked_state(state)
    async with open_home(target) as home:
        found = await _find(home.webhooks, wanted)
        page = await home.webhooks.deliveries(found.id, limit=limit, state=chosen)
    for delivery in page.deliveries:
        print(msgspec.json.encode(delivery).decode() if as_json else _delivery_line(delivery))
    if not page.deliveries and not as_json:
        print("There are no such deliveries." if chosen else "Nothing has been sent yet.")


async def send_again(target: Target, wanted: str, delivery: str) -> None:
    async with open_home(target) as home:
        found = await _find(home.webhooks, wanted)
        known = await _find_delivery(home.webhooks, found.id, delivery)
        sent = await home.webhooks.send_again(found.id, known.id)
    print(f"{sent.id} is sent again. `holdfast webhooks deliveries {found.id}` shows what becomes of it.")


async def _find(webhooks: Webhooks, wanted: str) -> WebhookView:
    """The only webhook whose id begins with this."""
    check_prefix("webhook", wanted)
    known = [webhook for webhook in await webhooks.all() if webhook.id.startswith(wanted)]
    return only_match("webhook", wanted, known, advice="`holdfast webhooks list` shows them.")


async def _find_delivery(webhooks: Webhooks, webhook_id: str, wanted: str) -> WebhookDeliveryView:
    """The delivery with this id, or the only recent one whose id begins with it."""
    try:
        return await webhooks.delivery(webhook_id, wanted)
    except NotFound:
        check_prefix("delivery", wanted)
    page = await webhooks.deliveries(webhook_id, limit=PAGE)
    known = [delivery for delivery in page.deliveries if delivery.id.startswith(wanted)]
    return only_match("delivery", wanted, known, advice="`holdfast webhooks deliveries` shows them.")


def _checked_state(given: str | None) -> ShownDeliveryState | None:
    if given is None or given in get_args(ShownDeliveryState):
        return cast(ShownDeliveryState | None, given)
    raise Refusal("state_invalid", f"{given!r} is not a state. Allowed: {', '.join(get_args(ShownDeliveryState))}.")


def _print_secret(made: WebhookWithSecret, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(made).decode())
        return
    print(made.secret)
    about = f"The secret of webhook {made.webhook.id} to {visible(made.webhook.url)}."
    print(f"{about} It is not shown again: give it to the receiver.", file=sys.stderr)


def _line(webhook: WebhookView) -> str:
    state = "active" if webhook.active else "paused"
    parts = [webhook.id, state, visible(webhook.url), " ".join(webhook.events)]
    if webhook.description:
        parts.append(visible(webhook.description))
    if webhook.pending:
        parts.append(f"{webhook.pending} pending")
    if webhook.failing_since is not None:
        parts.append(f"failing since {when(webhook.failing_since)}")
    return "  ".join(parts)


def _delivery_line(delivery: WebhookDeliveryView) -> str:
    of = f"{delivery.session_id}:{delivery.position}" if delivery.session_id is not None else "test"
    line = f"{delivery.id}  {when(delivery.time)}  {delivery.type}  {of}  {delivery.state}"
    if delivery.attempts:
        line += f"  {delivery.attempts} {'attempt' if delivery.attempts == 1 else 'attempts'}, {_answer(delivery)}"
    if delivery.next_attempt_at is not None:
        line += f", next {when(delivery.next_attempt_at)}"
    return line


def _answer(delivery: WebhookDeliveryView) -> str:
    """The last answer, in words."""
    match delivery.fault:
        case None | "status":
            return f"status {delivery.status}" if delivery.status is not None else "no answer yet"
        case "timeout":
            return "it took too long"
        case "unreachable":
            return "the connection failed"
        case "no_such_host":
            return "there is no such host"
        case "address_refused":
            return "the server does not allow its address (HOLDFAST_WEBHOOK_HOSTS)"
        case "tls_failed":
            return "its certificate is not valid"
        case "unreadable":
            return "the server can't read the event or the secret"
