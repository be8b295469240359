"""The scenario of the crash campaign with a webhook. Its receiver is a process of its own (`receiver.py`)."""

from proof.crash.client import Client
from proof.crash.scenario import COMPLETED, DONE, M1_M2, Scenario, rule, says


async def _webhook(client: Client) -> None:
    """Two turns, one of which asks a person. Every event arrives; then one is sent again, and the records are
    dropped."""
    await client.register_webhook()
    await client.send("m1", "first")
    await client.permit("a1")
    await client.turns_end(1)
    await client.test_webhook()
    await client.send("m2", "second")
    await client.turns_end(2)
    await client.events_are_delivered()
    await client.send_event_again()
    await client.events_are_delivered()
    await client.drop_webhook()


WEBHOOK_SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="webhook",
        stages=(_webhook,),
        rules=(
            rule("first", says("May I?", "guarded_line"), DONE),
            rule("second", says("I will.", "append_line"), DONE),
        ),
        says=M1_M2,
        ends={"m1": COMPLETED, "m2": COMPLETED},
        has_webhook=True,
    ),
)
