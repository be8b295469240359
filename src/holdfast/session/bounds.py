"""Every bound of a session, with its reason."""

import msgspec

from holdfast.events.tool import MAX_RESULT_BYTES


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a turn, its tools and its inbox keep to."""

    max_message_characters: int = 64_000
    """A longer message is refused before it is stored; long material belongs in a file."""
    max_id_characters: int = 64
    """Ids come from clients and are stored with every row."""
    max_name_characters: int = 200
    """Titles, model names and the names of people who answered: one line each."""
    max_instructions_characters: int = 200_000
    """A system message, or what is added to a message for the model: both are sent with every call."""
    max_metadata_characters: int = 16_000
    """A session's metadata, names and values together; it is no database."""
    max_metadata_entries: int = 64
    """The most entries of a session's metadata."""
    max_attachment_bytes: int = 10_000_000
    """The pictures of one message together; they are sent with every later call."""
    max_message_files: int = 20
    """Files of one message: the model reads of each with every later call."""
    max_message_file_bytes: int = 1_000_000_000
    """The files of one message together."""
    max_waiting_messages: int = 10
    """Follow-ups that may wait in one session; the next is refused, never trimmed silently."""
    max_rounds: int = 100
    """Model calls in one turn; then one more without tools, to sum up."""
    max_same_calls: int = 5
    """The same tool with the same arguments in one turn: one more warns the model, a second more ends the turn."""
    max_calls_per_step: int = 64
    """Tool calls that one answer may ask for; the rest are refused as errors that the model sees."""
    max_model_attempts: int = 5
    """Tries at one model call before the turn ends with its error."""
    backoff_seconds: float = 1.0
    """The first wait before a model call is tried again; it doubles each time, with jitter."""
    max_backoff_seconds: float = 30.0
    """No wait between two tries is longer, unless the provider asked for more."""
    max_retry_after_seconds: float = 120.0
    """A provider that asks for a longer pause ends the turn instead, so that people see why."""
    tool_timeout_seconds: float = 300.0
    """No tool holds up a turn for longer."""
    cancelled_tool_seconds: float = 5.0
    """How long a session is kept for a cancelled tool that still runs, so that no other process runs it meanwhile."""
    max_tool_characters: int = 80_000
    """The part of a tool result that the model is sent; the log keeps the whole result."""
    max_tool_result_bytes: int = MAX_RESULT_BYTES
    """A larger result is an error: it would make the log itself slow to read."""
    max_answer_characters: int = 2_000_000
    """A model that never stops is cut here: text, reasoning with its opaque parts, and tool calls together."""
    max_claims_without_progress: int = 5
    """A session that keeps killing its holder is poison: its turn ends with an error."""
    max_woken_turns: int = 20
    """Turns in a row that task news may start; further news waits for a user message."""
    max_running_tasks: int = 20
    """Commands of one session that run at once, in the background and in front."""
    linger_seconds: float = 2.0
    """How long a holder keeps a waiting session, so that quick answers need no new claim."""
    snapshot_every_events: int = 200
    """Events between two snapshots. Fewer are cheap to fold. Large states are snapshotted more rarely."""
    compact_at_percent: int = 80
    """The percentage of the model's window at which a summary is made beside the turn."""
    compaction_wait_percent: int = 95
    """The percentage at which the turn waits for the summary."""
    compaction_tail_percent: int = 20
    """The percentage of the window, without the prompt, that the newest part of a conversation keeps when the rest is
    summarised."""
    max_verbatim_tokens: int = 20_000
    """The messages of people that are kept word for word beside a summary, newest first; at most a fifth of the
    window without the prompt."""
    max_pinned_tokens: int = 8_000
    """All pinned messages together: they are sent with every call, for good."""
    max_summary_tokens: int = 4_000
    """The longest summary; at most an eighth of the window."""
    max_compaction_attempts: int = 3
    """Processes that may die while they make one summary, and tries at its model call; then the older part is left
    out."""
    compaction_cooldown_seconds: float = 300.0
    """After a compaction failed, none is started beside a turn for so long."""
    max_refusals_as_too_long: int = 4
    """A call that its provider refuses as too long is made again after each compaction, so often; then the turn
    ends."""
