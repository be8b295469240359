"""The demo model: everything that it suggests works, and its answers are always the same."""

import json
import re
from pathlib import Path

import pytest

from holdfast.events.ids import TaskId, ToolCallId
from holdfast.events.task import TaskNotice
from holdfast.models.demo import DEMO_SCRIPT, demo_model
from holdfast.models.model import AssistantTurn, ContextMessage, ModelRequest, ToolOutcome, ToolUse, UserText
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.models.title_request import title_request
from holdfast.session.notices import notice_text
from tests.models.answers import answer_of, reasoning_of, text_of, tool_calls_of

pytestmark = pytest.mark.anyio

START_PAGE = Path(__file__).parents[2] / "web" / "src" / "view" / "suggestions.ts"


def without_pauses(script: Script) -> Script:
    def quick(reply: Reply) -> Reply:
        return Reply(text=reply.text, reasoning=reply.reasoning, tool_calls=reply.tool_calls)

    return Script(tuple(Rule(tuple(map(quick, rule.replies)), when=rule.when) for rule in script.rules))


DEMO = ScriptedModel(without_pauses(DEMO_SCRIPT), name="demo")


async def reply_to(*messages: ContextMessage) -> tuple[str, str, list[tuple[str, str, str]]]:
    chunks = await answer_of(DEMO, ModelRequest(messages=messages))
    return text_of(chunks), reasoning_of(chunks), tool_calls_of(chunks)


def outcome(name: str, arguments: str, text: str) -> tuple[ContextMessage, ...]:
    call_id = ToolCallId("c")
    return AssistantTurn("", (ToolUse(call_id, name, arguments),)), ToolOutcome(call_id, text)


async def test_title_request_does_not_disturb_the_conversation() -> None:
    for _ in range(2):
        chunks = await answer_of(DEMO, title_request("please build something that takes a while"))
        assert (text_of(chunks), tool_calls_of(chunks)) == ("Please build something that takes", [])
    assert (await reply_to(UserText("build something")))[2][0][1] == "exec"


def test_demo_has_its_name_and_a_readable_pace() -> None:
    assert demo_model().name == "demo"
    assert all(reply.chunk_delay_ms == 25 for rule in DEMO_SCRIPT.rules for reply in rule.replies)


@pytest.mark.parametrize(
    ("prompt", "tool", "keys"),
    [
        ("Please write something", "create", {"path", "file_text"}),
        ("Make a note", "create", {"path", "file_text"}),
        ("read the note", "view", {"path"}),
        ("build something", "exec", {"command", "description", "timeout"}),
        ("ask me a question", "ask_user", {"question", "choices"}),
    ],
)
async def test_demo_calls_a_tool_and_then_reports_its_outcome(prompt: str, tool: str, keys: set[str]) -> None:
    _, _, ((_, name, arguments),) = await reply_to(UserText(prompt))
    assert (name, set(json.loads(arguments))) == (tool, keys)
    text, _, calls = await reply_to(UserText(prompt), *outcome(name, arguments, "DENIED BY A PERSON"))
    assert "DENIED BY A PERSON" in text
    assert calls == []


async def test_demo_streams_reasoning() -> None:
    text, reasoning, _ = await reply_to(UserText("think about it"))
    assert text
    assert reasoning


async def test_long_answer_leaves_time_to_kill_the_process() -> None:
    text, _, _ = await reply_to(UserText("a long answer, please"))
    assert 180 <= len(text.split()) <= 260


async def test_every_suggestion_of_the_welcome_has_its_own_answer() -> None:
    welcome, _, _ = await reply_to(UserText("hello"))
    suggestions = re.findall(r'^- "(.+?)"', welcome, re.MULTILINE)
    answers = [str(await reply_to(UserText(suggestion))) for suggestion in suggestions]
    assert len(suggestions) == 8
    assert len({*answers, str((welcome, "", []))}) == 9


async def test_every_suggestion_of_the_start_page_has_its_own_answer() -> None:
    suggested = re.findall(r'text: "(.+?)"', START_PAGE.read_text().partition("const ANYWHERE")[0])
    answers = {str(await reply_to(UserText(text))) for text in suggested}
    assert len(suggested) == len(answers) >= 4
    assert str(await reply_to(UserText("hello"))) not in answers


async def test_steered_message_is_quoted_and_the_steps_continue() -> None:
    said: list[ContextMessage] = [UserText("Go step by step")]
    for number in range(3):
        _, _, ((_, name, arguments),) = await reply_to(*said)
        said += outcome(name, arguments, f"result {number}")
        if number == 1:
            said.append(UserText("And mind the gap"))
    text, _, calls = await reply_to(*said)
    assert "> And mind the gap\n" in text
    assert calls == []


async def test_demo_markdown_has_a_table_a_list_and_code_in_two_languages() -> None:
    text, _, _ = await reply_to(UserText("Show me some markdown"))
    assert "|---|---|---|" in text
    assert "\n   - with a stop." in text
    assert re.findall(r"^```(\w+)$", text, re.MULTILINE) == ["python", "bash"]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(code, "shown", "exec")


async def test_tool_result_with_a_message_is_reported_by_that_message() -> None:
    told = '{"status":"auto_backgrounded","task_id":"t1","message":"It goes on."}'
    text, _, _ = await reply_to(UserText("build something"), *outcome("exec", "{}", told))
    assert "came back with this:\n\nIt goes on.\n" in text
    ended, _, _ = await reply_to(UserText("build something"), *outcome("exec", "{}", '{"exit_code":0}'))
    assert '{"exit_code":0}' in ended


async def test_end_of_a_build_is_reported_and_starts_no_other_build() -> None:
    ended = TaskNotice(
        task_id=TaskId("t1"),
        kind="failed",
        command="make build # a long note to write",
        exit_code=3,
        output_tail="step 1\nno <room> & no time\n",
    )
    said = (UserText("build something"), AssistantTurn("It goes on."))
    text, _, calls = await reply_to(*said, UserText(notice_text(ended)))
    assert "Task t1 has news: failed, exit code 3." in text
    assert "no <room> & no time\n" in text, "the last line of output, unescaped"
    assert calls == [], "the command in the notice does not trigger a rule"


async def test_notice_without_exit_code_or_output_says_so() -> None:
    lost = TaskNotice(task_id=TaskId("t1"), kind="lost", command="make")
    text, _, _ = await reply_to(UserText(notice_text(lost)))
    assert "lost, exit code unknown" in text
    assert "(nothing)" in text
