"""What there is to type, and what each command is handed to.

Nothing but this file is imported for `--help`; a command imports what it needs when it runs.
"""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.cli.hints import Hints
    from holdfast.cli.where import Where
    from holdfast.config import Config

app = typer.Typer(
    name="holdfast",
    help="Holdfast: a durable runtime for AI agents. What you start survives the process that runs it.",
    epilog="\b\nA first look, without a key:  holdfast chat\nThe story of a crash:         holdfast story",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
sessions = typer.Typer(help="List, show, delete, export and import sessions.", no_args_is_help=True)
tasks = typer.Typer(help="List, show, follow and kill the commands that sessions run.", no_args_is_help=True)
db = typer.Typer(help="Look at the database, migrate it and back it up.", no_args_is_help=True)
app.add_typer(sessions, name="sessions", epilog="\b\nExample: holdfast sessions list --search invoice")
app.add_typer(tasks, name="tasks", epilog="\b\nExample: holdfast tasks tail t3f2a9c1")
app.add_typer(db, name="db", epilog="\b\nExample: holdfast db backup monday.db")
cluster = typer.Typer(help="See which processes work on a database, and what waits.", no_args_is_help=True)
app.add_typer(cluster, name="cluster", epilog="\b\nExample: holdfast cluster status --watch")
keys = typer.Typer(help="Make, list and revoke API keys for `holdfast serve`.", no_args_is_help=True)
app.add_typer(keys, name="keys", epilog="\b\nExample: holdfast keys create --name laptop --owner ada")

permissions = typer.Typer(help="List what was allowed for always, and take it back.", no_args_is_help=True)
app.add_typer(permissions, name="permissions", epilog="\b\nExample: holdfast permissions revoke 3f2a9c1b")

# The options that most commands share

DatabaseOption = Annotated[
    str | None, typer.Option("--database", metavar="URL", help="sqlite:///PATH, or postgresql://USER@HOST/NAME.")
]
DirectOption = Annotated[
    str | None,
    typer.Option("--database-direct", metavar="URL", help="PostgreSQL itself, where --database is a pooler."),
]
DataDirOption = Annotated[str | None, typer.Option("--data-dir", help="The folder of the database and the log.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="demo, openai/NAME or openrouter/NAME.")]
BaseUrlOption = Annotated[str | None, typer.Option("--model-base-url", help="Where the model's API is.")]
AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="RULE", help="Grant without asking, e.g. write or 'write(docs/*)'. Repeatable."),
]
RedisOption = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Redis or Valkey, for hints between processes: redis://HOST:PORT."),
]
ConcurrencyOption = Annotated[
    str | None, typer.Option("--concurrency", metavar="N", help="At most so many sessions at a time (200).")
]
DrainOption = Annotated[
    str | None, typer.Option("--drain-seconds", metavar="N", help="How long its end may wait for steps to end (5).")
]
MetricsPortOption = Annotated[
    str | None, typer.Option("--metrics-port", metavar="N", help="A port for /metrics, /healthz and /readyz alone.")
]
LogToOption = Annotated[str | None, typer.Option("--log-to", metavar="file|stderr", help="Where the log goes (file).")]
LogFormatOption = Annotated[
    str | None, typer.Option("--log-format", metavar="text|json", help="How the log is written.")
]
LogLevelOption = Annotated[
    str | None, typer.Option("--log-level", metavar="LEVEL", help="error, warning, info or debug: how much it tells.")
]
SandboxOption = Annotated[
    bool | None,
    typer.Option("--sandbox/--no-sandbox", show_default=False, help="Run commands in a sandbox made by bubblewrap."),
]
NetworkOption = Annotated[
    str | None, typer.Option("--sandbox-network", metavar="on|off", help="Whether there is a network in the sandbox.")
]
DirOption = Annotated[
    str | None, typer.Option("--dir", help="The session's working directory; this folder if left out.")
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="Use a server (`holdfast serve`) instead of a database here; or set HOLDFAST_URL."),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="The key for the server. Better in HOLDFAST_KEY: others see options in `ps`."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WorkOption = Annotated[bool, typer.Option("--work", help="Go on with the session here, until it is idle or waits.")]
SessionArgument = Annotated[str, typer.Argument(metavar="ID", help="Its id, or the first 4 or more characters of it.")]
TaskArgument = Annotated[str, typer.Argument(metavar="ID", help="Its id, or the first 4 or more characters of it.")]
RequestArgument = Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id, or the beginning of it.")]

Work = Callable[["Config", "Hints"], Awaitable[int | None]]
WorkAt = Callable[["Where", "Hints"], Awaitable[int | None]]


def _run(options: dict[str, object], work: Work) -> NoReturn:
    """Run a command with its settings; every error ends as a sentence and an exit status."""
    from holdfast.cli.hints import Hints
    from holdfast.cli.opening import run_to_end, settings

    async def everything() -> int | None:
        return await work(settings(options), Hints(options))

    raise typer.Exit(run_to_end(everything))


def _run_at(url: str | None, key: str | None, options: dict[str, object], work: WorkAt) -> NoReturn:
    """The same for a command about sessions, which are in a database here or on a server."""
    from holdfast.cli.hints import Hints
    from holdfast.cli.opening import run_to_end

    async def everything() -> int | None:
        from holdfast.cli.where import find_where

        where = find_where(options, url, key)
        server = {"url": where.server.url if url and where.server else None, "key": key is not None}
        return await work(where, Hints({**options, **server}))

    raise typer.Exit(run_to_end(everything))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def holdfast(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="\b\nExample: holdfast chat --allow 'write(docs/*)'\n"
    "Leave with Ctrl-D, or be killed: `holdfast chat` in the same folder goes on with what is unfinished."
)
def chat(
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Go on with this session.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Start a new session even if one here is unfinished.")] = False,
    allow: AllowOption = None,
    folder: DirOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
    model: ModelOption = None,
    model_base_url: BaseUrlOption = None,
    sandbox: SandboxOption = None,
    sandbox_network: NetworkOption = None,
) -> None:
    """Talk with an agent. Goes on with this folder's unfinished session, or starts a new one."""

    async def work(where: "Where", hints: "Hints") -> int:
        from holdfast.cli.chat import chat as talk
        from holdfast.cli.conversation import Wanted
        from holdfast.cli.where import find_folder

        wanted = Wanted(
            folder=find_folder(where, folder), session=session, new=new, allow=tuple(allow or ()), model=model
        )
        return await talk(where, wanted, hints)

    _run_at(url, key, _options(database, data_dir, model, model_base_url, sandbox, sandbox_network), work)


@app.command(
    epilog="\b\nExample: holdfast run 'Sum up README.md' --timeout 120\n\n\b\n"
    "Exit status: 0 completed, 3 stopped, 4 error, 5 timed out, 6 waits for an answer,\n"
    "1 the database, the server or the system failed, 2 wrong option or setting.\n\n\b\n"
    "With --json, one object to a line:\n"
    '  {"type": "event", "position", "id", "time", "name", "data"}   an event of the log\n'
    '  {"type": "delta", "message_id", "block", "kind", "text"}      a piece of an answer\n'
    '  {"type": "result", "session_id", "turn_id", "reason", "text", "error", "tasks"}   the last line;\n'
    "                                              tasks are the commands that run on in the background"
)
def run(
    prompt: Annotated[str, typer.Argument(help="What to do; - reads it from stdin.")],
    as_json: JsonOption = False,
    allow: AllowOption = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Go on with this session.")] = None,
    folder: DirOption = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="Leave after so long.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tools with effects only say what they would do.")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
    model: ModelOption = None,
    model_base_url: BaseUrlOption = None,
    sandbox: SandboxOption = None,
    sandbox_network: NetworkOption = None,
) -> None:
    """Send one message and print the answer. Nobody is asked: what is not allowed is denied."""

    async def work(where: "Where", hints: "Hints") -> int:
        from holdfast.cli.run import Asked
        from holdfast.cli.run import run as run_once
        from holdfast.cli.where import find_folder

        asked = Asked(
            prompt=prompt,
            folder=find_folder(where, folder),
            session=session,
            allow=tuple(allow or ()),
            model=model,
            timeout_seconds=timeout,
            dry_run=dry_run,
            as_json=as_json,
        )
        return await run_once(where, asked, hints)

    _run_at(url, key, _options(database, data_dir, model, model_base_url, sandbox, sandbox_network), work)


# Sessions


@sessions.command("list", epilog="\b\nExample: holdfast sessions list --limit 5")
def list_sessions(
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    search: Annotated[str, typer.Option("--search", help="Only those with this in the title or a message.")] = "",
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """The latest sessions, the newest first."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.sessions import list_sessions as listed

        await listed(where, limit=limit, search=search, as_json=as_json)

    _run_at(url, key, _options(database, data_dir), work)


@sessions.command("show", epilog="\b\nExample: holdfast sessions show 3f2a9c1b")
def show_session(
    session: SessionArgument,
    events: Annotated[bool, typer.Option("--events", help="The log itself, event by event.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """A session's conversation, or its log."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.sessions import show_session as shown

        await shown(where, session, events=events, as_json=as_json, hints=hints)

    _run_at(url, key, _options(database, data_dir), work)


@sessions.command("move", epilog="\b\nExample: holdfast sessions move 3f2a9c1b .")
def move_session(
    session: SessionArgument,
    folder: Annotated[Path, typer.Argument(help="The folder; on a server, an absolute path there.")],
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Let a session work in another folder, or in what has taken the place of its own."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.sessions import move_session as moved

        await moved(where, session, folder)

    _run_at(url, key, _options(database, data_dir), work)


@sessions.command("delete", epilog="\b\nExample: holdfast sessions delete 3f2a9c1b --yes")
def delete_session(
    session: SessionArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask first.")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Remove a session and all of its log. What it cost stays on the books."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.sessions import delete_session as deleted

        await deleted(where, session, yes=yes)

    _run_at(url, key, _options(database, data_dir), work)


@sessions.command("export", epilog="\b\nExample: holdfast sessions export 3f2a9c1b talk.json")
def export_session(
    session: SessionArgument,
    file: Annotated[Path | None, typer.Argument(help="Where to; stdout if left out.")] = None,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Write a session's whole log to a JSON file."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.sessions import export_session as exported

        await exported(where, session, file)

    _run_at(url, key, _options(database, data_dir), work)


@sessions.command("import", epilog="\b\nExample: holdfast sessions import talk.json")
def import_session(
    file: Annotated[Path, typer.Argument(help="An exported session; - reads stdin.")],
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Make a new, idle session from an exported one. Grants, paths and open turns are left behind."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.sessions import import_session as imported

        await imported(where, file)

    _run_at(url, key, _options(database, data_dir), work)


# Tasks


@tasks.command("list", epilog="\b\nExample: holdfast tasks list --all")
def list_tasks(
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only those of this session.")] = None,
    ended_too: Annotated[bool, typer.Option("--all", help="Also those that have ended, for a day.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """The commands that run, of all sessions."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.tasks import list_tasks as listed

        await listed(where, session, ended_too=ended_too, as_json=as_json, hints=hints)

    _run_at(url, key, _options(database, data_dir), work)


@tasks.command("show", epilog="\b\nExample: holdfast tasks show t3f2a9c1")
def show_task(
    task: TaskArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """All that is known of a task, and the last of what it wrote."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.tasks import show_task as shown

        await shown(where, task, as_json=as_json, hints=hints)

    _run_at(url, key, _options(database, data_dir), work)


@tasks.command(
    "tail",
    epilog="\b\nExample: holdfast tasks tail t3f2a9c1 --bytes 100000 > build.log\n"
    "Ctrl-C leaves, and the task goes on. What it wrote comes as it is, as with `tail -f`.",
)
def tail_task(
    task: TaskArgument,
    count: Annotated[int, typer.Option("--bytes", metavar="N", min=0, help="Begin so many bytes before now.")] = 4096,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on until the task ends.")] = True,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """What a task writes, until it ends. How it ended is told on stderr."""

    async def work(where: "Where", hints: "Hints") -> int:
        from holdfast.cli.tasks import tail_task as tailed

        return await tailed(where, task, count=count, follow=follow)

    _run_at(url, key, _options(database, data_dir), work)


@tasks.command("kill", epilog="\b\nExample: holdfast tasks kill t3f2a9c1")
def kill_task(
    task: TaskArgument,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """End a task and all that it started. Its session is told.

    Exits with 1 if something is known to have escaped, and names it.
    """

    async def work(where: "Where", hints: "Hints") -> int:
        from holdfast.cli.tasks import kill_task as killed

        return await killed(where, task)

    _run_at(url, key, _options(database, data_dir), work)


# Requests


@app.command(epilog="\b\nExample: holdfast requests --json")
def requests(
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only those of this session.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """What waits for somebody's answer, all of it. What is long opens in $PAGER, or in less."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.requests import list_requests

        await list_requests(where, session, as_json=as_json)

    _run_at(url, key, _options(database, data_dir), work)


@app.command(epilog="\b\nExample: holdfast approve 3f2a9c1b")
def approve(
    request: RequestArgument,
    for_session: Annotated[bool, typer.Option("--for-session", help="Also the same later in this session.")] = False,
    go_on: WorkOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
    model: ModelOption = None,
    model_base_url: BaseUrlOption = None,
    sandbox: SandboxOption = None,
    sandbox_network: NetworkOption = None,
) -> None:
    """Approve what a session asks for, from any terminal. The first answer counts."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.requests import approving, give_answer

        await give_answer(where, request, approving(for_session=for_session), work=go_on, hints=hints)

    _run_at(url, key, _options(database, data_dir, model, model_base_url, sandbox, sandbox_network), work)


@app.command(epilog="\b\nExample: holdfast deny 3f2a9c1b --reason 'Not in this folder.'")
def deny(
    request: RequestArgument,
    reason: Annotated[str, typer.Option("--reason", help="The model is told why.")] = "",
    go_on: WorkOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
    model: ModelOption = None,
    model_base_url: BaseUrlOption = None,
    sandbox: SandboxOption = None,
    sandbox_network: NetworkOption = None,
) -> None:
    """Deny what a session asks for, from any terminal. The first answer counts."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.requests import denying, give_answer

        await give_answer(where, request, denying(reason), work=go_on, hints=hints)

    _run_at(url, key, _options(database, data_dir, model, model_base_url, sandbox, sandbox_network), work)


@app.command(epilog="\b\nExample: holdfast answer 3f2a9c1b 2")
def answer(
    request: RequestArgument,
    text: Annotated[str, typer.Argument(help="The answer, or the number of a choice.")],
    go_on: WorkOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
    model: ModelOption = None,
    model_base_url: BaseUrlOption = None,
    sandbox: SandboxOption = None,
    sandbox_network: NetworkOption = None,
) -> None:
    """Answer a question that a session asks, from any terminal. The first answer counts."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.requests import answering, give_answer

        await give_answer(where, request, answering(text), work=go_on, hints=hints)

    _run_at(url, key, _options(database, data_dir, model, model_base_url, sandbox, sandbox_network), work)


# Permissions

PermissionArgument = Annotated[str, typer.Argument(metavar="ID", help="Its id, or the first 4 or more characters.")]
OfSessionOption = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="What this session may do without asking.")
]


@permissions.command("list", epilog="\b\nExample: holdfast permissions list --json")
def list_permissions(
    session: OfSessionOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """What was allowed for always, with who granted it, when and in which session."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.permissions import list_permissions as listed

        await listed(where, session, as_json=as_json)

    _run_at(url, key, _options(database, data_dir), work)


@permissions.command("revoke", epilog="\b\nExample: holdfast permissions revoke 3f2a9c1b")
def revoke_permission(
    permission: PermissionArgument,
    session: OfSessionOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Take back what was allowed for always; with --session, what was allowed for one session."""

    async def work(where: "Where", hints: "Hints") -> None:
        from holdfast.cli.permissions import revoke_permission as revoked

        await revoked(where, permission, session)

    _run_at(url, key, _options(database, data_dir), work)


# Serving


@app.command(
    epilog="\b\nExample: holdfast serve --model openai/llama3 --model-base-url http://127.0.0.1:11434/v1\n"
    "For others too: holdfast keys create --name laptop --owner ada; holdfast serve --auth keys --host 0.0.0.0"
)
def serve(
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on (127.0.0.1).")] = None,
    port: Annotated[str | None, typer.Option("--port", metavar="N", help="The port (8787); 0: a free one.")] = None,
    auth: Annotated[
        str | None,
        typer.Option("--auth", metavar="none|keys", help="none: for you, on this machine. keys: for who has a key."),
    ] = None,
    no_work: Annotated[
        bool, typer.Option("--no-work", help="Only serve; `holdfast worker` runs the sessions.")
    ] = False,
    redis: RedisOption = None,
    concurrency: ConcurrencyOption = None,
    drain_seconds: DrainOption = None,
    metrics_port: MetricsPortOption = None,
    log_to: LogToOption = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
    database: DatabaseOption = None,
    database_direct: DirectOption = None,
    data_dir: DataDirOption = None,
    model: ModelOption = None,
    model_base_url: BaseUrlOption = None,
    sandbox: SandboxOption = None,
    sandbox_network: NetworkOption = None,
) -> None:
    """Serve sessions over HTTP, and run them."""

    async def work(config: "Config", hints: "Hints") -> int:
        from holdfast.cli.serve import serve as serve_sessions

        return await serve_sessions(config, works=not no_work)

    options = _options(database, data_dir, model, model_base_url, sandbox, sandbox_network)
    seen = _seen(metrics_port, log_to, log_format, log_level)
    hands = _hands(redis, concurrency, drain_seconds)
    direct = {"database_direct": database_direct}
    _run({**options, **direct, "host": host, "port": port, "auth": auth, **hands, **seen}, work)


@app.command(
    epilog="\b\nExample: holdfast worker --database sqlite:////srv/holdfast.db --model openai/llama3 --concurrency 20\n"
    "It has no port of its own: `holdfast serve` on the same database is the way in."
)
def worker(
    redis: RedisOption = None,
    concurrency: ConcurrencyOption = None,
    drain_seconds: DrainOption = None,
    metrics_port: MetricsPortOption = None,
    log_to: LogToOption = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
    database: DatabaseOption = None,
    database_direct: DirectOption = None,
    data_dir: DataDirOption = None,
    model: ModelOption = None,
    model_base_url: BaseUrlOption = None,
    sandbox: SandboxOption = None,
    sandbox_network: NetworkOption = None,
) -> None:
    """Run sessions, and serve nobody: more hands for a database that others serve."""

    async def work(config: "Config", hints: "Hints") -> int:
        from holdfast.cli.worker import work as work_on

        return await work_on(config)

    options = _options(database, data_dir, model, model_base_url, sandbox, sandbox_network)
    seen = _seen(metrics_port, log_to, log_format, log_level)
    direct = {"database_direct": database_direct}
    _run({**options, **direct, **_hands(redis, concurrency, drain_seconds), **seen}, work)


@keys.command("create", epilog="\b\nExample: holdfast keys create --name laptop --owner ada --role user")
def create_key(
    name: Annotated[str, typer.Option("--name", help="What you will know it by.")],
    role: Annotated[str, typer.Option("--role", metavar="user|admin", help="An admin may choose anything.")] = "user",
    owner: Annotated[str | None, typer.Option("--owner", help="Whose sessions it opens; yours if left out.")] = None,
    as_json: JsonOption = False,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Make a key. It is shown once, and kept nowhere."""

    async def work(config: "Config", hints: "Hints") -> None:
        from holdfast.cli.keys import checked_role
        from holdfast.cli.keys import create_key as created

        await created(config, name=name, role=checked_role(role), owner=owner, as_json=as_json)

    _run(_options(database, data_dir), work)


@keys.command("list", epilog="\b\nExample: holdfast keys list")
def list_keys(as_json: JsonOption = False, database: DatabaseOption = None, data_dir: DataDirOption = None) -> None:
    """All keys that were made, revoked ones too. None is shown."""

    async def work(config: "Config", hints: "Hints") -> None:
        from holdfast.cli.keys import list_keys as listed

        await listed(config, as_json=as_json)

    _run(_options(database, data_dir), work)


@keys.command("revoke", epilog="\b\nExample: holdfast keys revoke 3f2a9c1b5d7e")
def revoke_key(
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `holdfast keys list` shows it.")],
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Refuse a key from now on, and break off what it reads."""

    async def work(config: "Config", hints: "Hints") -> None:
        from holdfast.cli.keys import revoke_key as revoked

        await revoked(config, key)

    _run(_options(database, data_dir), work)


# The database


@db.command("backup", epilog="\b\nExample: holdfast db backup monday.db")
def backup(
    file: Annotated[Path, typer.Argument(help="A file that does not exist yet.")],
    database: DatabaseOption = None,
    database_direct: DirectOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Copy the database to a file, consistently, while it is in use.

    Of PostgreSQL it is a dump for pg_restore, made by pg_dump.
    """

    async def work(config: "Config", hints: "Hints") -> None:
        from holdfast.cli.database import back_up

        await back_up(config, file)

    _run({**_options(database, data_dir), "database_direct": database_direct}, work)


@db.command("migrate", epilog="\b\nExample: holdfast db migrate --check")
def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if some migration is still to be run.")
    ] = False,
    database: DatabaseOption = None,
    database_direct: DirectOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Bring the database to this release's schema, and say what was done."""

    async def work(config: "Config", hints: "Hints") -> int:
        from holdfast.cli.database import migrate as migrate_database

        return await migrate_database(config, only_check=check)

    _run({**_options(database, data_dir), "database_direct": database_direct}, work)


@db.command("status", epilog="\b\nExample: holdfast db status")
def status(as_json: JsonOption = False, database: DatabaseOption = None, data_dir: DataDirOption = None) -> None:
    """Where the database is, how large, and what is in it."""

    async def work(config: "Config", hints: "Hints") -> None:
        from holdfast.cli.database import show_status

        await show_status(config, as_json=as_json)

    _run(_options(database, data_dir), work)


# The processes of a database


@cluster.command("status", epilog="\b\nExample: holdfast cluster status --check --max-wait 30")
def cluster_status(
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if something is wrong.")] = False,
    max_wait: Annotated[
        float, typer.Option("--max-wait", metavar="SECONDS", min=0, help="It is wrong if a session waits longer.")
    ] = 60.0,
    redis: RedisOption = None,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Which processes work on a database, and what waits for them. It only looks."""

    async def work(config: "Config", hints: "Hints") -> int:
        from holdfast.cli.cluster import show_cluster

        return await show_cluster(config, as_json=as_json, watch=watch, check=check, max_wait=max_wait)

    _run({**_options(database, data_dir), "redis": redis}, work)


# Everything else


@app.command("model-server", epilog="\b\nExample: holdfast model-server --script answers.json --port 8123")
def model_server(
    script: Annotated[Path | None, typer.Option("--script", help="A JSON script; the demo's if left out.")] = None,
    host: Annotated[str, typer.Option("--host")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 0,
) -> None:
    """Serve a scripted model over HTTP.

    It speaks chat completions: for tests, and for trying things out.
    """
    from holdfast.cli.model_server import serve

    raise typer.Exit(serve(script, host, port))


@app.command(epilog="\b\nExample: holdfast doctor --model openai/llama3 --model-base-url http://127.0.0.1:11434/v1")
def doctor(
    as_json: JsonOption = False,
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
    model: ModelOption = None,
    model_base_url: BaseUrlOption = None,
    sandbox: SandboxOption = None,
    sandbox_network: NetworkOption = None,
) -> None:
    """Check all that Holdfast needs."""

    async def work(config: "Config", hints: "Hints") -> int:
        from holdfast.cli.doctor import examine

        return await examine(config, as_json=as_json)

    _run(_options(database, data_dir, model, model_base_url, sandbox, sandbox_network), work)


class Story(StrEnum):
    CRASHES = "crashes"
    BUILD = "build"


@app.command(
    epilog="\b\nExample: holdfast story build\n\n\b\n"
    "crashes  an approval and an answer, cut by kill -9, that go on\n"
    "build    a slow command that outlives its runtime, and reports"
)
def story(which: Annotated[Story, typer.Argument(help="Which of the two.")] = Story.CRASHES) -> None:
    """Half a minute of crashes, with nothing lost.

    The processes are real, and really killed. Exits with 0 if all that is told was so.
    """
    from holdfast.cli import build_story
    from holdfast.cli import story as crash_story
    from holdfast.cli.opening import run_to_end

    raise typer.Exit(run_to_end(build_story.tell if which is Story.BUILD else crash_story.tell))


def _hands(redis: str | None, concurrency: str | None, drain_seconds: str | None) -> dict[str, object]:
    return {"redis": redis, "max_sessions_per_process": concurrency, "drain_seconds": drain_seconds}


def _seen(
    metrics_port: str | None, log_to: str | None, log_format: str | None, log_level: str | None
) -> dict[str, object]:
    return {"metrics_port": metrics_port, "log_to": log_to, "log_format": log_format, "log_level": log_level}


def _options(
    database: str | None,
    data_dir: str | None,
    model: str | None = None,
    model_base_url: str | None = None,
    sandbox: bool | None = None,
    sandbox_network: str | None = None,
) -> dict[str, object]:
    return {
        "database": database,
        "data_dir": data_dir,
        "model": model,
        "model_base_url": model_base_url,
        "sandbox": None if sandbox is None else "bubblewrap" if sandbox else "none",
        "sandbox_network": sandbox_network,
    }
