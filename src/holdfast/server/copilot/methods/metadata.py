"""A session's current state: its directory, whether it is busy, how full its context is, and its usage."""

import math
from typing import Any, Final

import msgspec

from holdfast.events.context import AssistantTurn, ContextMessage, ToolSpec
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.methods.settings import existing_directory
from holdfast.server.copilot.methods.tools import offered
from holdfast.server.copilot.methods.workspaces import workspace
from holdfast.server.copilot.projection import iso, shown_model
from holdfast.server.errors import Invalid
from holdfast.session.history import context
from holdfast.session.prompt import Prompt
from holdfast.session.state import Person, State

CHARACTERS_PER_TOKEN: Final = 4
"""A fair average for English and code. Only the model's provider can count exactly."""

KEPT_FREE: Final = 0.05
"""A fraction of the prompt limit, as in GitHub's runtime."""

CONTEXT_FIELDS: Final = (
    "cwd",
    "gitRoot",
    "branch",
    "repository",
    "repositoryHost",
    "hostType",
    "baseCommit",
    "headCommit",
)
MAX_FIELD_CHARACTERS: Final = 4_096


@method("session.metadata.snapshot")
async def snapshot(call: RpcCall) -> Any:
    key = call.attached().key
    row, state = await call.service.operations.session(key), await call.service.operations.state(key)
    metadata: dict[str, Any] = {
        "sessionId": key.session,
        "startTime": iso(row.created_at),
        "modifiedTime": iso(row.updated_at),
        "isRemote": False,
        "alreadyInUse": False,
        "workspacePath": str(call.service.folder(key)),
        "workingDirectory": state.working_directory or "",
        "currentMode": state.mode,
        "selectedModel": shown_model(state.model),
        "clientName": state.client_name or "sdk",
        "workspace": workspace(row, state),
    }
    return {**metadata, "summary": row.title} if row.title else metadata


@method("session.metadata.isProcessing")
async def is_processing(call: RpcCall) -> Any:
    row = await call.service.operations.session(call.attached().key)
    return {"processing": row.status != "idle"}


@method("session.metadata.activity")
async def activity(call: RpcCall) -> Any:
    """Whether anything runs. A background task counts as work, but does not end with the turn."""
    key = call.attached().key
    tasks = await call.service.tasks.of_session(key)
    row = await call.service.operations.session(key)
    runs = any(task.status == "running" for task in tasks)
    return {"hasActiveWork": runs or row.status != "idle", "abortable": row.turn_id is not None}


@method("session.metadata.setWorkingDirectory")
async def set_working_directory(call: RpcCall) -> Any:
    key = call.attached().key
    directory = await existing_directory(call, call.text("workingDirectory"))
    assert isinstance(directory, str), "one was named"
    await call.service.operations.move(key, directory)
    return {"workingDirectory": directory}


@method("session.metadata.recordContextChange")
async def record_context_change(call: RpcCall) -> Any:
    """Announce what a client learned about the working directory. Other directories are ignored."""
    attached = call.attached()
    fields = call.param("context", dict[str, Any], {})
    context_data = {name: fields[name] for name in CONTEXT_FIELDS if isinstance(fields.get(name), str)}
    if "cwd" not in context_data:
        raise Invalid("context_invalid", "A context needs a cwd, which is a string.")
    if any(len(value) > MAX_FIELD_CHARACTERS for value in context_data.values()):
        raise Invalid("context_invalid", f"Each field of a context has at most {MAX_FIELD_CHARACTERS:,} characters.")
    state = await call.service.operations.state(attached.key)
    if context_data["cwd"] == state.working_directory:
        attached.hub.publish("session.context_changed", context_data)
    return {}


# How full the context is


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated tokens of the next model call. Images are not counted."""

    system: int
    conversation: int
    tools: int


def estimate(call: RpcCall, state: State, tools: tuple[ToolSpec, ...]) -> Estimate:
    system, *conversation = context(state, Prompt(instructions=call.service.settings.instructions))
    return Estimate(
        system=_tokens(system),
        conversation=sum(_tokens(message) for message in conversation),
        tools=_tokens_of(msgspec.json.encode(tools).decode()) if tools else 0,
    )


def _tokens(message: ContextMessage) -> int:
    text = message.text
    if isinstance(message, AssistantTurn):
        text += "".join(call.name + call.arguments for call in message.tool_calls)
    return _tokens_of(text)


def _tokens_of(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


@method("session.metadata.contextInfo")
async def context_info(call: RpcCall) -> Any:
    state = await call.service.operations.whole_state(call.attached().key)
    prompt, output = call.param("promptTokenLimit", int, 0), call.param("outputTokenLimit", int, 0)
    tokens = estimate(call, state, offered(call, state))
    return {
        "contextInfo": {
            "modelName": call.param("selectedModel", str, "") or shown_model(state.model) or "",
            "systemTokens": tokens.system,
            "conversationTokens": tokens.conversation,
            "toolDefinitionsTokens": tokens.tools,
            "mcpToolsTokens": 0,
            "totalTokens": tokens.system + tokens.conversation + tokens.tools,
            "promptTokenLimit": prompt,
            "compactionThreshold": prompt * _compacts_at(call, state) // 100,
            "limit": prompt + output,
            "bufferTokens": int(prompt * KEPT_FREE) + output,
        }
    }


def _compacts_at(call: RpcCall, state: State) -> int:
    """The percentage of the window at which the session is compacted."""
    chosen = state.compaction_settings.start_percent if state.compaction_settings is not None else None
    return call.service.operations.bounds.compact_at_percent if chosen is None else chosen


@method("session.metadata.recomputeContextTokens")
async def recompute_context_tokens(call: RpcCall) -> Any:
    state = await call.service.operations.whole_state(call.attached().key)
    tokens = estimate(call, state, ())
    return {
        "totalTokens": tokens.system + tokens.conversation,
        "messagesTokenCount": tokens.conversation,
        "systemTokenCount": tokens.system,
    }


# Usage


@method("session.usage.getMetrics")
async def get_metrics(call: RpcCall) -> Any:
    key = call.attached().key
    state = await call.service.operations.whole_state(key)
    metrics, duration = await call.service.usage(key)
    ledger = await call.service.operations.usage(key.owner, key.session)
    last = max(ledger, key=lambda entry: entry.time, default=None)
    return {
        "totalPremiumRequestCost": 0,
        "totalNanoAiu": 0,
        "totalUserRequests": sum(isinstance(item, Person) for item in state.history),
        "totalApiDurationMs": duration,
        "sessionStartTime": iso(state.started_at),
        "codeChanges": {"linesAdded": 0, "linesRemoved": 0, "filesModifiedCount": 0, "filesModified": []},
        "modelMetrics": metrics,
        "agentMetrics": {},
        "lastCallInputTokens": (last.input_tokens or 0) if last else 0,
        "lastCallOutputTokens": (last.output_tokens or 0) if last else 0,
        "currentModel": shown_model(state.model),
    }
