"""A tool and a session, in ten lines. Run it twice: the second run goes on where the first ended."""

import asyncio

from holdfast import Runtime, tool


@tool(permission="allow", after_crash="repeat")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


async def main() -> None:
    async with Runtime(model="demo", tools=[weather]) as runtime:
        session = await runtime.session("my-first-session")
        turn = await session.run("Hello! What can you do?")
        print(turn.text)


asyncio.run(main())
