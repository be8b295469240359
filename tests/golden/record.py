"""Records a golden database: run with a release's own code, it leaves sessions in every state that the release knows.

    python tests/golden/record.py DATABASE

The process ends by SIGKILL while a message streams and a tool runs, so that the database holds leases, segments and an
attempt in doubt. `README.md` in this folder says how a recording is kept.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from holdfast import Runtime, tool
from holdfast.events.session import ClientTool
from holdfast.live.live import Delta
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel

STARTED = asyncio.Event()


@tool(permission="allow")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def pay(amount: int) -> str:
    """Pay an amount. It asks first."""
    return f"Paid {amount}."


@tool(permission="allow")
async def launch() -> str:
    """Start something that can't be started twice. It never returns here."""
    STARTED.set()
    await asyncio.Event().wait()
    return "Launched."


LOOK_UP = ClientTool(name="look_up", description="Look something up.", parameters={"type": "object"})

SCRIPT = Script(
    rules=(
        Rule((Reply(tool_calls=(ScriptedCall("add", {"a": 2, "b": 3}),)), Reply(text="It is five.")), when="sum"),
        Rule((Reply(tool_calls=(ScriptedCall("pay", {"amount": 7}),)),), when="invoice"),
        Rule((Reply(tool_calls=(ScriptedCall("ask_user", {"question": "Which colour?"}),)),), when="paint"),
        Rule((Reply(tool_calls=(ScriptedCall("look_up", {"word": "holdfast"}),)),), when="dictionary"),
        Rule((Reply(tool_calls=(ScriptedCall("launch"),)),), when="rocket"),
        Rule((Reply(text="Once upon a time", chunk_delay_ms=600_000),), when="story"),
        Rule((Reply(text="Hello."),)),
    )
)


async def main(database: str) -> None:
    model = ScriptedModel(SCRIPT)
    async with Runtime(database=database, model=model, tools=[add, pay, launch]) as runtime:
        finished = await runtime.session("finished", title="Sums")
        await finished.run("A sum, please", message_id="sum-1")
        await finished.run("Thank you", message_id="thanks-1")
        await (await runtime.session("asking")).run("Pay the invoice", message_id="invoice-1")
        await (await runtime.session("question")).run("Paint it", message_id="paint-1")
        client_tool = await runtime.session("client-tool", client_tools=(LOOK_UP,))
        await client_tool.run("Use the dictionary", message_id="dictionary-1")
        in_doubt = await runtime.session("in-doubt")
        await in_doubt.send("Start the rocket", message_id="rocket-1")
        await STARTED.wait()
        streaming = await runtime.session("streaming")
        await streaming.send("Tell a story", message_id="story-1")
        async for reading in streaming.events():
            if isinstance(reading, Delta) and reading.kind == "text":
                break
        await streaming.send("And then?", message_id="queued-1", delivery="enqueue")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if "://" in sys.argv[1] else str(Path(sys.argv[1]).absolute())))
