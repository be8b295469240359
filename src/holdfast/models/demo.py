"""The demo model, which needs no key and no network: it shows what Holdfast does and how to use a real model."""

from holdfast.models.info import UNKNOWN
from holdfast.models.scripted import TASK_NEWS, Reply, Rule, Script, ScriptedCall, ScriptedModel

DEMO_FILE = "holdfast-demo.txt"
WORD_PACE_MS = 25
"""Slow enough to read along and to interrupt, fast enough not to bore."""

STEP_PAUSE_MS = 1_500
"""Long enough to send a steering message during the turn."""

BUILD_STEPS = 8
BUILD_WAIT_SECONDS = 1
BUILD_COMMAND = f"""\
echo "building, as process $$"
for step in {" ".join(str(step) for step in range(1, BUILD_STEPS + 1))}; do
  sleep 1
  echo "step $step of {BUILD_STEPS}"
done
echo "built {BUILD_STEPS} steps\"
"""
"""Slow enough to kill and restart the process while it runs. It builds nothing."""

_FILE_TEXT = """This file was written by Holdfast's demo model, after you approved it.

The approval is part of the session's log, and so is the outcome of the call. You may delete this file.
"""

_WELCOME = """\
I am the demo model: my answers come from a script, so nothing leaves this machine and nothing costs money. Try one \
of these:

- "write a note": I ask to create a file, and wait until you approve or deny it.
- "read the note": I look at that file with a tool.
- "ask me a question": I ask, and wait for your answer.
- "think about it": my reasoning is shown before the answer.
- "build something": a slow command that goes on in the background; I report when it ends.
- "go step by step": several slow steps; write something meanwhile, and it joins the next one.
- "show me markdown": a table, a list and code.
- "a long answer": long enough to kill the process in the middle of it and start it again.

To talk to a real model, set OPENAI_API_KEY or OPENROUTER_API_KEY and choose it with --model, for example \
openai/NAME or openrouter/NAME. A local server needs no key: --model openai/llama3 \
--model-base-url http://127.0.0.1:11434/v1"""

_THINKING = """\
The question is how to think in public without a mind. What I can do is show where the thinking of a real model goes: \
it is streamed like the answer, kept in the log, and left out of what the model is sent next."""

_THOUGHT = """\
I thought about it; the reasoning stands above this answer. With a real model you would see its own reasoning there, \
if its provider sends it. Load the session again and it is still there."""

_LONG = """\
Here is a long answer, so that you have time to break something. Kill the process now, while these words are coming \
in, and start it again.

What you have read so far will still be there. Every piece of an answer is committed to the database before it is \
shown, so nothing that you saw can disappear. When the process comes back, it reads the session's log from the start, \
or from a snapshot, and works out what comes next. There is no separate way to resume: reading the log and deciding \
is how every turn runs, every time.

An answer that was cut off is closed where it stopped and marked as interrupted. Then the model is asked again, and \
its new answer follows as a new message. Holdfast does not pretend that a provider can go on with a broken stream, \
because none of them can.

Tools get the same care. A result that was recorded is never produced twice. A call that may or may not have \
happened follows the rule that its tool declares: run it again if that is harmless, or tell the \
model that the outcome is unknown.

If you have read this far without killing anything, ask me for a long answer again. I will wait."""


_MARKDOWN = """\
## What is kept, and where

| what happens | what is on disk | what comes next |
|---|---|---|
| you send a message | the message | it runs, once |
| the process dies in mid-word | every word that you saw | the answer is made again below it |
| nobody answers a request | the request | it waits, for **days** if it must |

A list, in two levels:

1. *Accepted* means committed.
2. Every turn ends where you can see it:
   - with an answer,
   - with an error, or
   - with a stop.

The same in ten lines of Python:

```python
import asyncio

from holdfast import Runtime


async def main() -> None:
    async with Runtime(model="demo") as runtime:
        session = await runtime.session()
        turn = await session.run("Hello")
        print(turn.text)


asyncio.run(main())
```

And from a terminal, with `curl`:

```bash
curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8787/v1/sessions
```

> What was shown stays: this text is in the log, and a page that is loaded again shows the same."""


def _said(text: str, *, reasoning: str = "", delay_ms: float = 0) -> Reply:
    return Reply(text=text, reasoning=reasoning, delay_ms=delay_ms, chunk_delay_ms=WORD_PACE_MS)


def _calls(text: str, call: ScriptedCall, *, delay_ms: float = 0) -> Reply:
    return Reply(text=text, tool_calls=(call,), delay_ms=delay_ms, chunk_delay_ms=WORD_PACE_MS)


_READ = Rule(
    when="read the note",
    replies=(
        _calls("I will look at the note.", ScriptedCall("view", {"path": DEMO_FILE})),
        _said(
            "This is what the tool gave me:\n\n{last_tool_result}\n\n"
            'Reading inside the working directory needs no approval. Say "write a note" if there is no note yet.'
        ),
    ),
)

_WRITE = (
    _calls(
        f"I would like to write a note to {DEMO_FILE}. Writing needs your approval, so I wait for it; you may close "
        f"this and answer later, from anywhere.",
        ScriptedCall("create", {"path": DEMO_FILE, "file_text": _FILE_TEXT}),
    ),
    _said(
        "The call has its outcome:\n\n{last_tool_result}\n\n"
        'It is recorded and will not be made again. Say "read the note" and I will look at the file.'
    ),
)

_ASK = (
    _calls(
        "I have a question for you.",
        ScriptedCall(
            "ask_user",
            {
                "question": "What would you like to see survive?",
                "choices": ["A long answer", "A pending approval", "This question"],
            },
        ),
    ),
    _said(
        "I received:\n\n{last_tool_result}\n\n"
        "A question belongs to the session and not to the window it was shown in: whoever opens the session may "
        "answer it, and the first answer counts."
    ),
)

_BUILD = (
    _calls(
        f"I start a build that takes about {BUILD_STEPS} seconds, and wait no longer than {BUILD_WAIT_SECONDS} for it.",
        ScriptedCall("exec", {"command": BUILD_COMMAND, "description": "A slow build", "timeout": BUILD_WAIT_SECONDS}),
    ),
    _said(
        "The call came back with this:\n\n{last_tool_message}\n\n"
        "A command that is slower than its caller is patient goes on in the background. It does not belong to this "
        "process: kill it, start it again, and the build is still running. When it ends, I will tell you."
    ),
)

_STEPS = (
    _calls(
        "I do this in three steps, and take my time over each. Write something while I work: it waits beside the box, "
        "and joins what I do when this step is done. First I look around.",
        ScriptedCall("view", {"path": "."}),
    ),
    _calls(
        "That was the first step. Whatever you have written meanwhile stands in the conversation now, right after the "
        "result of the tool, and I was sent it whole. Now I look whether there is a note.",
        ScriptedCall("glob", {"pattern": DEMO_FILE}),
        delay_ms=STEP_PAUSE_MS,
    ),
    _calls(
        "That was the second step. There is still time to add something. Last I look for what the note says of itself.",
        ScriptedCall("grep", {"pattern": "Holdfast", "glob": DEMO_FILE}),
        delay_ms=STEP_PAUSE_MS,
    ),
    _said(
        "Done, in three steps. The last that I heard from you is this:\n\n> {user}\n\n"
        "Had you written it a moment later, it would have started the next turn.",
        delay_ms=STEP_PAUSE_MS,
    ),
)

_REPORT = _said(
    "Task {task_id} has news: {task_status}, exit code {task_exit_code}. The last line that it wrote is: "
    "{task_last_line}\n\nNobody had to ask: the end of a task wakes its session, once."
)

DEMO_SCRIPT = Script(
    rules=(
        Rule(when=TASK_NEWS, replies=(_REPORT,)),
        Rule(when="markdown", replies=(_said(_MARKDOWN),)),
        Rule(when="step by step", replies=_STEPS),
        _READ,
        Rule(when="build", replies=_BUILD),
        Rule(when="question", replies=_ASK),
        Rule(when="note", replies=_WRITE),
        Rule(when="write", replies=_WRITE),
        Rule(when="think", replies=(_said(_THOUGHT, reasoning=_THINKING),)),
        Rule(when="long", replies=(_said(_LONG),)),
        Rule(replies=(_said(_WELCOME),)),
    )
)


def demo_model() -> ScriptedModel:
    return ScriptedModel(DEMO_SCRIPT, name="demo", info=UNKNOWN)
