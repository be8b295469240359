"""Every setting of a process: one frozen value, validated before anything starts.

An option beats an environment variable, which beats the default. `python -m holdfast.config` prints
docs/configuration.md from the fields below, so that the page always matches the code.
"""

import ast
import base64
import binascii
import difflib
import inspect
import os
import pwd
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, get_args
from urllib.parse import parse_qs, urlsplit

import msgspec

from holdfast.events.ids import LOCAL_OWNER
from holdfast.models.providers import POSSIBLE, KeyedModel, keyed_model
from holdfast.models.stated_facts import BadFacts, StatedFacts, read_stated_facts
from holdfast.session.bounds import Bounds
from holdfast.webhooks.addresses import is_receiver

PREFIX: Final = "HOLDFAST_"

RESERVED: Final = frozenset(
    {
        "HOLDFAST_KEY",
        "HOLDFAST_ON_LAST_DISCONNECT",
        "HOLDFAST_URL",
    }
)
"""Variables that other programs of Holdfast read. Setting them here is allowed and has no effect."""

BUCKETS: Final = ("s3", "gs", "az")
"""The schemes of file stores that are no folder."""

MAX_NUMBER: Final = 1_000_000_000_000
"""The upper bound of every number: sums of two still fit wherever they are stored, and typing errors are caught."""

MAX_NAME_CHARACTERS: Final = 64
"""Names are bounded because an owner is a part of every key in the database."""


MIN_SECRET_KEY_CHARACTERS: Final = 16
"""An attacker with a copy of the database could guess a shorter key."""


MAX_JWT_LEEWAY_SECONDS: Final = 300.0
"""Clocks that differ by more are set wrong, and a stolen token would be good for longer."""

JWT_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric ones only: with a shared secret, or without a signature, everyone who can check a token could make one."""


MAX_THINKING_TOKENS: Final = 1_000_000
"""More than any model supports."""


class ConfigError(Exception):
    """A setting is wrong. The message names it, the problem and the allowed values; it never holds a secret."""

    code: Final = "config_invalid"

    def __init__(self, setting: str, problem: str, *, allowed: str) -> None:
        super().__init__(f"{setting} {problem}. Allowed: {allowed}.")
        self.setting = setting
        self.problem = problem
        self.allowed = allowed


class Secret:
    """A text that no repr, format, traceback or encoder shows. Only `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be serialised")


Sandbox = Literal["none", "bubblewrap"]

Switch = Literal["on", "off"]

CommandsWithoutSandbox = Literal["refuse", "allow"]

Auth = Literal["none", "keys"]

JwtOwners = Literal["separate", "shared"]

Titles = Literal["model", "words"]

ModelWire = Literal["auto", "chat", "responses", "messages"]

LogTo = Literal["file", "stderr"]

LogFormat = Literal["text", "json"]

LogLevel = Literal["error", "warning", "info", "debug"]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The validated settings of a process. `load` creates it; its users need not check it again."""

    data_dir: Path
    """The folder of the database and its files, unless `database` names another place."""
    database: str
    """The database: `sqlite:///here.db` (relative), `sqlite:////srv/there.db`, or `postgresql://USER@HOST/NAME`."""
    database_pooled: Switch = "off"
    """`on` if a pooler at that URL gives each transaction another connection, else `off`. See docs/postgres.md."""
    database_direct: Secret | None = None
    """A PostgreSQL URL that bypasses such a pooler, for migrations and notifications. It turns `database_pooled` on."""
    model: str = "demo"
    """The model of new sessions. `demo` needs no key and no network. If no model is chosen, the first key among
    `ANTHROPIC_API_KEY`, `OPENAI_API_KEY` and `OPENROUTER_API_KEY` chooses its provider's model. See docs/models.md."""
    model_advanced: str | None = None
    """The model of the tier `advanced`, which HTTP clients can choose; without it the tier does not exist."""
    model_fallback: str | None = None
    """The model that is asked when a session's own can't be reached or is overloaded after its retries."""
    model_wire: ModelWire = "auto"
    """The protocol of models of the same provider as `model`: `chat` completions, `responses`, `messages`, or `auto`,
    which goes by the name and the address."""
    model_first_byte_seconds: float = 600.0
    """How long a model may take until its answer begins: local models read a long conversation slowly."""
    model_silence_seconds: float = 120.0
    """How long an answer that has begun may pause."""
    models: tuple[StatedFacts, ...] = ()
    """A TOML or JSON file with facts about models: windows, prices, what they take. See docs/models.md."""
    thinking: int | None = None
    """The thinking budget, in tokens, of sessions created over HTTP, or `off`; if not set, the model's own default."""
    model_compaction: str | None = None
    """The model that summarises long conversations, if it is not the session's own: a cheaper one, say. Sessions with
    their client's own provider use their own model."""
    titles: Titles = "model"
    """The source of titles of sessions created over HTTP: their `model`, in a separate call, or their first `words`."""
    model_base_url: str | None = None
    """The URL of the model's API, if it is not the provider's own. For models of the same provider as `model` only; if
    `model` names no provider, for `openai/NAME`."""
    model_api_key: Secret | None = None
    """The key for that API; never logged, stored or shown. It has no option, because others can read command lines. For
    models of the same provider as `model` only: others need their provider's usual variable. If `model` names no
    provider, it is sent only to `model_base_url`."""
    secret_key: Secret | None = None
    """Encrypts the secrets of clients in the database, for all processes with this key. Needs `holdfast[secrets]`."""
    redis: Secret | None = None
    """Redis or Valkey, for hints between processes, as `redis://HOST:PORT`. Needs `holdfast[cluster]`."""
    redis_prefix: str | None = None
    """The prefix of channels, for clusters that share a Redis and copies of one database. Else the database's id."""
    owner: str = LOCAL_OWNER
    """The owner of the sessions that this process creates and sees."""
    sandbox: Sandbox = "none"
    """The sandbox of commands: `bubblewrap`, or `none`, where they can reach the database. See docs/sandbox.md."""
    sandbox_network: Switch = "on"
    """Network access of commands in a sandbox: `on` or `off`."""
    commands_without_sandbox: CommandsWithoutSandbox = "refuse"
    """With `--auth keys` and no sandbox: `refuse` commands, or `allow` them to do whatever the server's user can."""
    host: str = "127.0.0.1"
    """The address that `holdfast serve` listens on."""
    port: int = 8787
    """The port that `holdfast serve` listens on; 0 takes a free one."""
    auth: Auth = "none"
    """Authentication: `none` accepts the token of this start, on this machine; `keys` accepts API keys, and JWTs if
    `jwt_jwks` is set."""
    jwt_jwks: str | None = None
    """The key set (JWKS) of the issuer of JWTs: an `https://` URL, or a path. With it, `--auth keys` accepts JWTs as
    well as API keys. Needs `holdfast[jwt]`. See docs/identity.md."""
    jwt_issuer: str | None = None
    """The issuer of JWTs: the claim `iss`, letter by letter."""
    jwt_audience: tuple[str, ...] = ()
    """What JWTs are for, separated by commas: one of these must be in the claim `aud`."""
    jwt_algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "ES384", "EdDSA")
    """The algorithms that JWTs may be signed with, separated by commas. All are asymmetric."""
    jwt_owner_claim: str = "sub"
    """The claim of a JWT that names the owner."""
    jwt_owners: JwtOwners = "separate"
    """`separate`: the owner of a JWT is `jwt+` and the claim, and never the owner of a key; `shared`: the claim alone,
    so that keys and JWTs of one name open the same sessions."""
    jwt_role_claim: str | None = None
    """The claim of a JWT that names its roles, or its path (`realm_access.roles`); none: all have the role `user`."""
    jwt_admin_roles: tuple[str, ...] = ("admin",)
    """Roles in that claim that make an admin, separated by commas."""
    jwt_user_roles: tuple[str, ...] = ()
    """Roles in that claim that make a `user`, separated by commas. Then a JWT with no known role is refused; if none
    are set, it has the role `user`."""
    jwt_leeway_seconds: float = 30.0
    """How far the clocks of the issuer of JWTs and of this machine may differ; 300 at most."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names of the server, beside those of this machine, separated by commas."""
    allowed_origins: tuple[str, ...] = ()
    """Other origins whose web pages may use the server, such as `https://example.org`, separated by commas."""
    user_directories: tuple[str, ...] = ()
    """Folders of the role `user`: `/srv/work/{owner}` (or `/srv/work`), `shared:/srv/team` for all; none: no files."""
    user_models: tuple[str, ...] = ()
    """Models that sessions of the role `user` may name, or patterns (`openrouter/*`); none: only the configured one."""
    user_tools: tuple[str, ...] = ()
    """Tools that sessions of the role `user` may use; none: all, but commands only in a sandbox."""
    user_rules: tuple[str, ...] = ("read", "write", "custom-tool")
    """Rules that `user` keys may grant in advance. Without a pattern they cover only the working directory."""
    webhooks: Switch = "on"
    """`off`: owners can't register webhooks, and this process sends nothing to any."""
    webhook_hosts: tuple[str, ...] = ()
    """Private receivers that webhooks may reach, also without https: names, addresses, networks (`10.1.0.0/16`)."""
    max_webhooks_per_owner: int = 10
    """Webhooks that one owner may have; one more is refused. 0: no limit."""
    drain_seconds: float = 5.0
    """How long a stopping process lets its sessions finish their step before it hands them over."""
    max_body_bytes: int = 1_000_000
    """The largest request body; a larger one is refused before it is read to its end. Answers to requests and imports
    have bounds of their own."""
    max_import_bytes: int = 16_000_000
    """The largest import over HTTP. On the server's machine `holdfast sessions import` takes larger ones."""
    max_import_events: int = 10_000
    """The most events of an import over HTTP."""
    follow_ups_per_minute: int = 30
    """Messages per minute that one owner may send into running turns; the next is refused before it is stored."""
    streams_per_owner: int = 1_000
    """Concurrent streams of one owner."""
    replay_seconds: float = 60.0
    """How long an ended turn can still be streamed from its start."""
    metrics_host: str = "127.0.0.1"
    """The address of the metrics port. It needs no authentication; metrics contain no user data."""
    metrics_port: int | None = None
    """A port with only `/metrics`, `/healthz` and `/readyz`, of `holdfast serve` or `worker`; 0 takes a free one."""
    log_to: LogTo = "file"
    """The destination of a server's log: `file`, beside the database, or `stderr`."""
    log_format: LogFormat | None = None
    """`text` or `json`. If not set: JSON on a stderr that is no terminal, and text everywhere else."""
    log_level: LogLevel = "info"
    """The level of the log: `error`, `warning`, `info` or `debug`."""
    trace_content: Switch = "off"
    """`on` adds messages, arguments and results to spans, without known secrets; `off` leaves them out."""
    lease_ttl_seconds: float = 15.0
    """How long a lease lasts after its holder's last heartbeat, before another process takes over."""
    renew_every_seconds: float = 4.0
    """The interval of the heartbeat that renews leases; two attempts may fail before the leases are lost."""
    lease_margin_seconds: float = 3.0
    """How long before its lease ends a holder stops: the difference of two clocks that is made up for."""
    claim_every_seconds: float = 1.0
    """How often a process polls for work that no wake-up announced."""
    tails_every_seconds: float = 0.5
    """How often a holder polls for a stop or a message that no wake-up announced."""
    max_sessions_per_process: int = 200
    """Sessions that one process runs at the same time; more wait for a free place or another process."""
    max_running_turns_per_owner: int = 5
    """Concurrent turns of one owner, in all processes together; the next wait. 0: no limit. See docs/http.md."""
    max_turns_in_flight_per_owner: int = 15
    """Turns of one owner that run or wait to run; a message that would start one more is refused. 0: no limit."""
    max_sessions_per_owner: int = 10_000
    """Sessions that one owner may have; one more is refused. 0, or a server without keys: no limit."""
    max_bytes_per_owner: int = 10_000_000_000
    """The size of one owner's logs and inboxes; beyond it messages and new sessions are refused. 0: no limit."""
    budget_day: int | None = None
    """What the model calls of one owner may cost in a UTC day, in US dollars, such as `2.50`; 0 blocks, and without it
    there is no limit. See docs/budgets.md."""
    budget_week: int | None = None
    """The same for an ISO week."""
    budget_session: int | None = None
    """The same for one session, for good."""
    budget_turn: int | None = None
    """The same for one turn."""
    budget_tree: int | None = None
    """The same for a session and all that were started from it, for good."""
    budget_tiers: Mapping[str, float] = {}
    """Budget tiers of owners, and how often each has the budgets of a day and a week: `free=1,pro=5`."""
    audit_days: int = 0
    """How many days entries of the audit log are kept; `holdfast serve` removes older ones. 0: for good."""
    files: str = ""
    """The folder of files, or a bucket: `s3://BUCKET/PREFIX`, `gs://…` or `az://…` (needs `holdfast[buckets]`). Else a
    folder beside the database, or in the data directory with PostgreSQL. See docs/files.md."""
    max_file_bytes: int = 500_000_000
    """The largest file; a larger one is refused while it comes."""
    max_files_per_owner: int = 10_000
    """Files of one owner with an API key; a further one is refused. 0 is no limit."""
    max_file_bytes_per_owner: int = 10_000_000_000
    """All files of one owner with an API key. 0 is no limit."""
    file_unused_seconds: float = 86_400.0
    """How long a file stays that no session uses and that is not kept."""
    billing_secret: Secret | None = None
    """The secret of a billing system's signatures on `POST /v1/billing`; without it there is no such route."""
    credit_url: str | None = None
    """The address that is asked before a person's budget is reset; without it people can't reset theirs."""
    credit_secret: Secret | None = None
    """The secret of the signatures on these questions."""
    command_seconds: float = 1800.0
    """The time limit of a command; a command that exceeds it is ended, and its task has failed."""
    command_output_bytes: int = 256 * 1024 * 1024
    """The output of a command that is kept whole; beyond it only the beginning and the end are kept."""
    command_memory_bytes: int = 0
    """The largest address space of each process of a command; 0 is no limit."""
    command_processes: int = 0
    """The most processes of this user while a command runs, by the system's count (never for root); 0 is no limit."""
    command_file_bytes: int = 0
    """The largest file that a command may write; 0 is no limit."""
    command_environment: tuple[str, ...] = ()
    """Names of variables that commands get beside the few harmless ones, separated by commas."""
    stall_after_seconds: float = 45.0
    """A task without output for this long, whose last line looks like a question, is reported as stalled."""
    task_retention_seconds: float = 86_400.0
    """How long an ended task and its output are kept."""
    task_lost_after_seconds: float = 3600.0
    """After this long without a heartbeat from its machine, a task counts as lost."""
    node: str | None = None
    """The name of this machine among those that share a database. By default its host name."""
    shared_directories: tuple[str, ...] = ()
    """Folders that all machines share, separated by commas: sessions that work there may run on any machine."""
    bounds: Bounds = Bounds()
    warnings: tuple[str, ...] = ()
    database_url: Secret | None = None
    keyed_model: KeyedModel | None = None

    def __post_init__(self) -> None:
        longest = self.lease_ttl_seconds - self.lease_margin_seconds
        if self.renew_every_seconds >= longest:
            raise ConfigError(
                "renew_every_seconds",
                f"is {self.renew_every_seconds:g}, too long to keep a lease",
                allowed=f"less than lease_ttl_seconds - lease_margin_seconds, which is {longest:g}",
            )
        if 0 < self.max_turns_in_flight_per_owner < self.max_running_turns_per_owner:
            raise ConfigError(
                "max_turns_in_flight_per_owner",
                f"is {self.max_turns_in_flight_per_owner}, fewer than may run",
                allowed=f"0, or at least max_running_turns_per_owner, which is {self.max_running_turns_per_owner}",
            )
        if self.jwt_jwks is not None and (self.jwt_issuer is None or not self.jwt_audience):
            missing = "jwt_issuer" if self.jwt_issuer is None else "jwt_audience"
            raise ConfigError(
                missing, "is not set, but jwt_jwks is", allowed="the issuer and the audience of the tokens to accept"
            )
        if self.jwt_leeway_seconds > MAX_JWT_LEEWAY_SECONDS:
            raise ConfigError(
                "jwt_leeway_seconds", f"is {self.jwt_leeway_seconds:g}", allowed=f"0 to {MAX_JWT_LEEWAY_SECONDS:g}"
            )
        if (self.credit_url is None) is not (self.credit_secret is None):
            missing, other = ("credit_url", "credit_secret")[:: 1 if self.credit_url is None else -1]
            raise ConfigError(missing, f"is not set, but {other} is", allowed="both, or neither")
        if self.model_fallback == self.model:
            raise ConfigError(
                "model_fallback", f"is {self.model}, the model itself", allowed="another model, or not set"
            )
        if self.bounds.max_backoff_seconds < self.bounds.backoff_seconds:
            raise ConfigError(
                "max_backoff_seconds",
                f"is {self.bounds.max_backoff_seconds:g}, shorter than the first wait",
                allowed=f"at least backoff_seconds, which is {self.bounds.backoff_seconds:g}",
            )

    @property
    def is_postgres(self) -> bool:
        return is_postgres(self.database)

    @property
    def refuses_commands(self) -> bool:
        """Whether a server or worker refuses commands: without a sandbox, any key would get the rights of its user."""
        is_for_others = self.auth == "keys" and self.sandbox == "none"
        return is_for_others and self.commands_without_sandbox == "refuse"

    @property
    def database_path(self) -> Path:
        """The file of the embedded database."""
        assert not self.is_postgres, "PostgreSQL has no file here"
        return Path(self.database.removeprefix(SQLITE))

    @property
    def files_folder(self) -> Path | None:
        """The folder of files; None: they are in a bucket."""
        if self.files:
            return None if "://" in self.files else Path(self.files)
        if self.is_postgres:
            return self.data_dir / "files"
        database = self.database_path.resolve()
        return database.with_name(database.name + ".files")

    @property
    def database_shown(self) -> str:
        """The location of the sessions, as people see it."""
        return self.database if self.is_postgres else str(self.database_path)


# Readers of single values

SQLITE: Final = "sqlite:///"
POSTGRES: Final = ("postgresql://", "postgres://")
DATABASE_ALLOWED: Final = "sqlite:///relative.db, sqlite:////absolute.db or postgresql://USER:PASSWORD@HOST:PORT/NAME"


class Given(msgspec.Struct, frozen=True):
    """A value and the option or variable that it came from, which errors name."""

    source: str
    value: object

    def refused(self, problem: str, *, allowed: str) -> ConfigError:
        return ConfigError(self.source, f"is {_shortened(self.value)}, {problem}", allowed=allowed)

    def text(self, *, allowed: str) -> str:
        text = str(self.value) if isinstance(self.value, str | Path) else ""
        if not text.strip() or not text.isprintable():
            raise self.refused("not a line of text", allowed=allowed)
        return text.strip()


def _shortened(value: object) -> str:
    if "@" in str(value):
        return "(not shown)"  # The value may be a URL with a password.
    shown = repr(str(value) if isinstance(value, Path) else value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _read_name(given: Given, environ: Mapping[str, str]) -> str:
    allowed = f"1 to {MAX_NAME_CHARACTERS} printable characters"
    name = given.text(allowed=allowed)
    if len(name) > MAX_NAME_CHARACTERS:
        raise given.refused("too long", allowed=allowed)
    return name


def _read_line(given: Given, environ: Mapping[str, str]) -> str:
    return given.text(allowed="one line of text")


def _read_names(given: Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    allowed = "names of variables with commas between them, none of HOLDFAST_*"
    if isinstance(given.value, tuple | list):
        names = [str(name) for name in given.value]
    else:
        names = [name.strip() for name in given.text(allowed=allowed).split(",") if name.strip()]
    for name in names:
        if not name.isidentifier() or not name.isascii() or name.startswith(PREFIX):
            raise given.refused("not a list of variables that commands may have", allowed=allowed)
    return tuple(names)


def _read_list(given: Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    if isinstance(given.value, tuple | list):
        return tuple(str(item) for item in given.value)
    text = given.text(allowed="words with commas between them")
    return tuple(item.strip() for item in text.split(",") if item.strip())


_ORIGIN: Final = re.compile(r"https?://[a-z0-9.\[\]:-]+")


def _read_folders(given: Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(str(_absolute(folder, environ)) for folder in _read_list(given, environ))


def _read_user_folders(given: Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    folders = []
    for folder in _read_list(given, environ):
        shared = "shared:" if folder.startswith("shared:") else ""
        path = str(_absolute(folder.removeprefix("shared:"), environ))
        if path.count("{owner}") > (0 if shared else 1):
            raise given.refused("not a list of folders", allowed="/srv/work/{owner}, or shared:/srv/team for all")
        folders.append(f"{shared}{path}")
    return tuple(folders)


def _read_receivers(given: Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    receivers = _read_list(given, environ)
    if not all(map(is_receiver, receivers)):
        allowed = "names, addresses or networks (hooks.internal, 10.0.0.7, 10.1.0.0/16), with commas between them"
        raise given.refused("not a list of receivers", allowed=allowed)
    return receivers


def _read_origins(given: Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    origins = _read_list(given, environ)
    if not all(_ORIGIN.fullmatch(origin) for origin in origins):
        allowed = "https://HOST or http://HOST:PORT, in small letters, with commas between them"
        raise given.refused("not a list of origins", allowed=allowed)
    return origins


def _read_port(given: Given, environ: Mapping[str, str]) -> int:
    text = str(given.value)
    if isinstance(given.value, bool) or not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise given.refused("not a port", allowed="0 to 65535")
    return int(text)


def _read_thinking(given: Given, environ: Mapping[str, str]) -> int:
    text = str(given.value).strip()
    if text == "off":
        return 0
    if isinstance(given.value, bool) or not text.isascii() or not text.isdigit() or int(text) > MAX_THINKING_TOKENS:
        raise given.refused("not a number of tokens", allowed=f"off, or 0 to {MAX_THINKING_TOKENS}")
    return int(text)


def _read_model(given: Given, environ: Mapping[str, str]) -> str:
    return given.text(allowed="a model's name")


def _read_fallback(given: Given, environ: Mapping[str, str]) -> str:
    name = given.text(allowed="a model's name")
    if name != "demo" and not all(name.partition("/")):
        raise given.refused("which is no model's name", allowed=POSSIBLE.removeprefix("Possible are ").rstrip("."))
    return name


def microdollars_of(source: str, dollars: str) -> int:
    """The amount of US dollars that somebody typed. Raises `ConfigError`, which names `source`."""
    return _read_dollars(Given(source, dollars), {})


def _read_dollars(given: Given, environ: Mapping[str, str]) -> int:
    """An amount of US dollars as microdollars. A program gives microdollars."""
    if isinstance(given.value, int) and not isinstance(given.value, bool) and given.value >= 0:
        return given.value
    text = str(given.value).strip()
    if not _DOLLARS.fullmatch(text):
        raise given.refused("not an amount of US dollars", allowed="0, 20 or 2.50, with at most six decimals")
    whole, _, decimals = text.partition(".")
    return int(whole) * 1_000_000 + int(decimals.ljust(6, "0"))


_DOLLARS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")

_TIER: Final = re.compile(r"([a-z0-9][a-z0-9_-]{0,31})=([0-9]{1,6}(?:\.[0-9]{1,3})?)")


def _read_tiers(given: Given, environ: Mapping[str, str]) -> Mapping[str, float]:
    if isinstance(given.value, Mapping):
        return {str(name): float(factor) for name, factor in given.value.items()}
    tiers: dict[str, float] = {}
    for word in _read_list(given, environ):
        match = _TIER.fullmatch(word)
        if match is None or match[1] in tiers:
            raise given.refused("not a list of tiers", allowed="NAME=FACTOR with commas between them: free=1,pro=5")
        tiers[match[1]] = float(match[2])
    return tiers


def _read_models(given: Given, environ: Mapping[str, str]) -> tuple[StatedFacts, ...]:
    if isinstance(given.value, tuple):
        return given.value
    path = _read_path(given, environ)
    try:
        return read_stated_facts(path)
    except BadFacts as error:
        raise ConfigError(given.source, f"is {path}, {error.problem}", allowed=error.allowed) from None


def _one_of(choices: tuple[str, ...]) -> "Reader":
    allowed = " or ".join(choices)

    def read(given: Given, environ: Mapping[str, str]) -> str:
        chosen = given.text(allowed=allowed)
        if chosen not in choices:
            raise given.refused("which is none of the choices", allowed=allowed)
        return chosen

    return read


def _read_path(given: Given, environ: Mapping[str, str]) -> Path:
    return _absolute(given.text(allowed="a path"), environ)


def _read_database(given: Given, environ: Mapping[str, str]) -> str:
    if isinstance(given.value, str) and given.value.strip().startswith(("postgresql:", "postgres:")):
        return _read_postgres(given, environ).reveal()
    if isinstance(given.value, str) and "://" in given.value and not given.value.startswith(SQLITE):
        raise ConfigError(given.source, "names a database that Holdfast does not know", allowed=DATABASE_ALLOWED)
    url = given.text(allowed=DATABASE_ALLOWED)
    path = url.removeprefix(SQLITE)
    if path == url:
        raise given.refused("not a database URL", allowed=DATABASE_ALLOWED)
    if path == ":memory:":
        raise given.refused("which would not outlive the process", allowed=DATABASE_ALLOWED)
    if not path or path.endswith("/"):
        raise given.refused("which names no file", allowed=DATABASE_ALLOWED)
    return f"{SQLITE}{_absolute(path, environ)}"


def is_postgres(url: str) -> bool:
    return url.startswith(POSTGRES)


def without_password(url: str) -> str:
    """A PostgreSQL URL without its password: user, host and the name of the database."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    host = (parts.netloc.rpartition("@")[2] or "".join(query.get("host", [])[:1])).replace("/", "%2F")
    user = f"{parts.username}@" if parts.username else ""
    return f"postgresql://{user}{host}{parts.path}"


def _read_file_place(given: Given, environ: Mapping[str, str]) -> str:
    allowed = f"a folder, or the URL of a bucket: {', '.join(f'{scheme}://…' for scheme in BUCKETS)}"
    text = given.text(allowed=allowed)
    if "://" not in text:
        return str(_absolute(text, environ))
    parts = urlsplit(text)
    if parts.scheme not in BUCKETS or not parts.netloc or "@" in parts.netloc or parts.query:
        raise given.refused("not such a URL (credentials come from the environment)", allowed=allowed)
    return text


def _read_postgres(given: Given, environ: Mapping[str, str]) -> Secret:
    """Validate a PostgreSQL URL. Errors do not repeat it, because it may hold a password."""
    url = given.value.reveal() if isinstance(given.value, Secret) else str(given.value).strip()
    try:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        has_host = bool(parts.netloc.rpartition("@")[2]) or "host" in query
        usable = is_postgres(url) and has_host and len(parts.path) > 1 and all(_ports(parts.netloc))
    except ValueError:
        usable = False
    if not usable or "#" in url or " " in url or not url.isprintable():
        allowed = "postgresql://USER:PASSWORD@HOST:PORT/NAME; in a password, write %XX for all but letters and digits"
        raise ConfigError(given.source, "is not the URL of a PostgreSQL database", allowed=allowed)
    return Secret(url)


def _ports(place: str) -> list[bool]:
    """Whether each port is valid. There may be several hosts, separated by commas."""
    ports = [host.rpartition(":")[2] for host in place.rpartition("@")[2].split(",") if _HAS_PORT.search(host)]
    return [port.isascii() and port.isdigit() and 0 < int(port) < 65_536 for port in ports]


_HAS_PORT: Final = re.compile(r"(^[^\[\]]*|\]):[^:\]]*$")


def _read_url(given: Given, environ: Mapping[str, str]) -> str:
    allowed = "a URL that starts with https:// or http:// and holds no user name, password, query or fragment"
    url = str(given.value)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    # The URL may hold a key, so the error does not repeat it.
    if not usable or "@" in url or "?" in url or "#" in url or " " in url or not url.isprintable():
        raise ConfigError(given.source, "is not a usable URL", allowed=allowed)
    return url.rstrip("/")


LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _read_key_set(given: Given, environ: Mapping[str, str]) -> str:
    allowed = "https://HOST/PATH, http:// on this machine only, or a path"
    text = given.text(allowed=allowed)
    if "://" not in text:
        return str(_absolute(text, environ))
    try:
        parts = urlsplit(text)
        # Over plain HTTP, anyone on the way could put in a key of their own.
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
        usable = is_safe and bool(parts.hostname) and parts.port != 0 and parts.username is None and not parts.fragment
    except ValueError:
        usable = False
    if not usable or " " in text:
        raise ConfigError(given.source, "is not the address of a key set that can be trusted", allowed=allowed)
    return text


def _read_algorithms(given: Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    names = _read_list(given, environ)
    if not names or not set(names) <= set(JWT_ALGORITHMS):
        raise given.refused("not a list of algorithms", allowed=f"some of {', '.join(JWT_ALGORITHMS)}")
    return names


_REDIS_ALLOWED: Final = "redis://[:PASSWORD@]HOST[:PORT][/NUMBER], the same with rediss:// for TLS, or unix:///PATH"


def _read_redis(given: Given, environ: Mapping[str, str]) -> Secret:
    url = given.value.reveal() if isinstance(given.value, Secret) else str(given.value).strip()
    try:
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else parts.hostname
        usable = parts.scheme in ("redis", "rediss", "unix") and bool(place) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "#" in url or " " in url or not url.isprintable():
        # The URL may hold a password, so the error does not repeat it.
        raise ConfigError(given.source, "is not the URL of a Redis", allowed=_REDIS_ALLOWED)
    return Secret(url)


def _read_secret(given: Given, environ: Mapping[str, str]) -> Secret:
    text = given.value.reveal() if isinstance(given.value, Secret) else str(given.value)
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        # The error does not show the value, even though it is invalid.
        raise ConfigError(given.source, "can't be sent as a key", allowed="printable ASCII characters without spaces")
    return Secret(text)


def _read_secret_key(given: Given, environ: Mapping[str, str]) -> Secret:
    secret = _read_secret(given, environ)
    if len(secret.reveal()) < MIN_SECRET_KEY_CHARACTERS:
        allowed = f"{MIN_SECRET_KEY_CHARACTERS} or more printable ASCII characters without spaces"
        raise ConfigError(given.source, "is too short to seal anything", allowed=allowed)
    return secret


def _read_webhook_secret(given: Given, environ: Mapping[str, str]) -> Secret:
    secret = _read_secret(given, environ)
    if len(secret.reveal()) < MIN_SECRET_KEY_CHARACTERS:
        allowed = f"{MIN_SECRET_KEY_CHARACTERS} or more printable ASCII characters without spaces, such as whsec_..."
        raise ConfigError(given.source, "is too short to sign anything", allowed=allowed)
    prefix, found, encoded = secret.reveal().partition("whsec_")
    try:
        base64.b64decode(encoded if found and not prefix else "", validate=True)
    except binascii.Error:
        allowed = "base64 after whsec_, or a secret that begins in another way"
        raise ConfigError(given.source, "is no secret of a webhook", allowed=allowed) from None
    return secret


def _number_reader(kind: type[int] | type[float], *, zero_allowed: bool) -> "Reader":
    least = "0" if zero_allowed else "1" if kind is int else "more than 0"
    noun = "a whole number" if kind is int else "a number of seconds"
    allowed = f"{noun}, {least} to {MAX_NUMBER}"

    def read(given: Given, environ: Mapping[str, str]) -> float:
        if isinstance(given.value, bool) or not isinstance(given.value, str | int | float):
            raise given.refused(f"not {noun}", allowed=allowed)
        if kind is int and isinstance(given.value, float):
            raise given.refused(f"not {noun}", allowed=allowed)
        try:
            number = kind(given.value)
        except (ValueError, OverflowError):
            raise given.refused(f"not {noun}", allowed=allowed) from None
        if not 0 <= number <= MAX_NUMBER or (number == 0 and not zero_allowed):
            raise given.refused("out of range", allowed=allowed)
        return number

    return read


# Paths


def _absolute(path: str, environ: Mapping[str, str]) -> Path:
    if path == "~" or path.startswith("~/"):
        path = f"{_home(environ)}{path[1:]}"
    return Path(os.path.abspath(os.path.expanduser(path)))


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    if os.path.isabs(home):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise ConfigError(
            "data_dir", "has no default, because this user has no home", allowed="HOLDFAST_DATA_DIR set to a path"
        ) from None


def _default_data_dir(environ: Mapping[str, str]) -> Path:
    shared = environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(shared):
        return Path(shared) / "holdfast"
    if sys.platform == "darwin":
        return _home(environ) / "Library" / "Application Support" / "holdfast"
    return _home(environ) / ".local" / "share" / "holdfast"


# The table of settings

Reader = Callable[[Given, Mapping[str, str]], object]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its names, its default and its reader."""

    name: str
    option: str | None
    """The command line option; None for a setting that only a variable or a program can set."""
    default: str
    read: Reader
    is_bound: bool = False

    @property
    def env(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def meaning(self) -> str:
        return _notes(Bounds if self.is_bound else Config)[self.name]


@cache
def _notes(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The docstring of each field, parsed from the source because Python does not keep it."""
    (definition,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(definition, ast.ClassDef)
    notes: dict[str, str] = {}
    for field, note in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(note, ast.Expr):
            notes[ast.unparse(field.target)] = " ".join(str(ast.literal_eval(note.value)).split())
    return notes


def _number(name: str, default: float, *, is_bound: bool) -> Setting:
    kind = type(default)
    return Setting(
        name=name,
        option=NUMBER_OPTIONS.get(name),
        default=f"{default:g}" if kind is float else str(default),
        read=_number_reader(kind, zero_allowed=name in MAY_BE_ZERO),
        is_bound=is_bound,
    )


def _numbers(struct: type[msgspec.Struct]) -> tuple[Setting, ...]:
    return tuple(
        _number(field.name, field.default, is_bound=struct is Bounds)
        for field in msgspec.structs.fields(struct)
        if isinstance(field.default, int | float) and field.name not in READ_OTHERWISE
    )


NUMBER_OPTIONS: Final = {"max_sessions_per_process": "--concurrency", "drain_seconds": "--drain-seconds"}
"""The command line options of numbers."""

READ_OTHERWISE: Final = frozenset({"port"})
"""Numbers with a reader of their own."""

MAY_BE_ZERO: Final = frozenset(
    {
        "drain_seconds",
        "max_running_turns_per_owner",
        "max_turns_in_flight_per_owner",
        "max_sessions_per_owner",
        "max_bytes_per_owner",
        "max_webhooks_per_owner",
        "max_files_per_owner",
        "max_file_bytes_per_owner",
        "replay_seconds",
        "jwt_leeway_seconds",
        "audit_days",
        "backoff_seconds",
        "linger_seconds",
        "max_backoff_seconds",
        "lease_margin_seconds",
        "command_memory_bytes",
        "command_processes",
        "command_file_bytes",
    }
)

DATA_DIR_DEFAULT: Final = (
    "$XDG_DATA_HOME/holdfast, or ~/.local/share/holdfast (macOS: ~/Library/Application Support/holdfast)"
)

SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(name="data_dir", option="--data-dir", default=DATA_DIR_DEFAULT, read=_read_path),
    Setting(name="database", option="--database", default="sqlite:///<data_dir>/holdfast.db", read=_read_database),
    Setting(name="database_pooled", option=None, default="off", read=_one_of(get_args(Switch))),
    Setting(name="database_direct", option="--database-direct", default="", read=_read_postgres),
    Setting(name="files", option=None, default="", read=_read_file_place),
    Setting(name="node", option=None, default="", read=_read_name),
    Setting(name="shared_directories", option=None, default="", read=_read_folders),
    Setting(name="model", option="--model", default="demo", read=_read_model),
    Setting(name="model_advanced", option=None, default="", read=_read_model),
    Setting(name="model_fallback", option=None, default="", read=_read_fallback),
    Setting(name="thinking", option=None, default="", read=_read_thinking),
    Setting(
        name="model_compaction",
        option=None,
        default="",
        read=lambda given, environ: given.text(allowed="a model's name"),
    ),
    Setting(name="titles", option=None, default="model", read=_one_of(get_args(Titles))),
    Setting(name="model_base_url", option="--model-base-url", default="", read=_read_url),
    Setting(name="model_api_key", option=None, default="", read=_read_secret),
    Setting(name="model_wire", option=None, default="auto", read=_one_of(get_args(ModelWire))),
    Setting(name="models", option=None, default="", read=_read_models),
    Setting(name="budget_day", option=None, default="", read=_read_dollars),
    Setting(name="budget_week", option=None, default="", read=_read_dollars),
    Setting(name="budget_session", option=None, default="", read=_read_dollars),
    Setting(name="budget_turn", option=None, default="", read=_read_dollars),
    Setting(name="budget_tree", option=None, default="", read=_read_dollars),
    Setting(name="budget_tiers", option=None, default="", read=_read_tiers),
    Setting(name="billing_secret", option=None, default="", read=_read_webhook_secret),
    Setting(name="credit_url", option=None, default="", read=_read_url),
    Setting(name="credit_secret", option=None, default="", read=_read_webhook_secret),
    Setting(name="secret_key", option=None, default="", read=_read_secret_key),
    Setting(name="redis", option="--redis", default="", read=_read_redis),
    Setting(name="redis_prefix", option=None, default="", read=_read_name),
    Setting(name="owner", option=None, default=LOCAL_OWNER, read=_read_name),
    Setting(name="sandbox", option="--sandbox", default="none", read=_one_of(get_args(Sandbox))),
    Setting(name="sandbox_network", option="--sandbox-network", default="on", read=_one_of(get_args(Switch))),
    Setting(
        name="commands_without_sandbox",
        option=None,
        default="refuse",
        read=_one_of(get_args(CommandsWithoutSandbox)),
    ),
    Setting(name="command_environment", option=None, default="", read=_read_names),
    Setting(
        name="host",
        option="--host",
        default="127.0.0.1",
        read=lambda given, environ: given.text(allowed="an address or a name of this machine"),
    ),
    Setting(name="port", option="--port", default="8787", read=_read_port),
    Setting(name="auth", option="--auth", default="none", read=_one_of(get_args(Auth))),
    Setting(name="jwt_jwks", option=None, default="", read=_read_key_set),
    Setting(name="jwt_issuer", option=None, default="", read=_read_line),
    Setting(name="jwt_audience", option=None, default="", read=_read_list),
    Setting(name="jwt_algorithms", option=None, default="RS256,PS256,ES256,ES384,EdDSA", read=_read_algorithms),
    Setting(name="jwt_owner_claim", option=None, default="sub", read=_read_line),
    Setting(name="jwt_owners", option=None, default="separate", read=_one_of(get_args(JwtOwners))),
    Setting(name="jwt_role_claim", option=None, default="", read=_read_line),
    Setting(name="jwt_admin_roles", option=None, default="admin", read=_read_list),
    Setting(name="jwt_user_roles", option=None, default="", read=_read_list),
    Setting(name="allowed_hosts", option=None, default="", read=_read_list),
    Setting(name="allowed_origins", option=None, default="", read=_read_origins),
    Setting(name="user_directories", option=None, default="", read=_read_user_folders),
    Setting(name="user_models", option=None, default="", read=_read_list),
    Setting(name="user_tools", option=None, default="", read=_read_list),
    Setting(name="user_rules", option=None, default="read,write,custom-tool", read=_read_list),
    Setting(name="webhooks", option=None, default="on", read=_one_of(get_args(Switch))),
    Setting(name="webhook_hosts", option=None, default="", read=_read_receivers),
    Setting(
        name="metrics_host",
        option=None,
        default="127.0.0.1",
        read=lambda given, environ: given.text(allowed="an address or a name of this machine"),
    ),
    Setting(name="metrics_port", option="--metrics-port", default="", read=_read_port),
    Setting(name="log_to", option="--log-to", default="file", read=_one_of(get_args(LogTo))),
    Setting(name="log_format", option="--log-format", default="", read=_one_of(get_args(LogFormat))),
    Setting(name="log_level", option="--log-level", default="info", read=_one_of(get_args(LogLevel))),
    Setting(name="trace_content", option=None, default="off", read=_one_of(get_args(Switch))),
    *_numbers(Config),
    *_numbers(Bounds),
)


# Loading


def load(options: Mapping[str, object], environ: Mapping[str, str]) -> Config:
    """Read and validate the settings of this process, with the file of facts about models. Creates and opens nothing
    else.

    `options` has settings by name; None is the same as absent. An empty variable is the same as an unset one.
    """
    _refuse_unknown(options)
    values: dict[str, Any] = {}
    bounds: dict[str, Any] = {}
    for setting in SETTINGS:
        given = _find(setting, options, environ)
        if given is not None:
            (bounds if setting.is_bound else values)[setting.name] = setting.read(given, environ)
    if _names_another_provider(environ, values.get("model", "")):
        for name in ("model_api_key", "model_base_url", "model_wire"):
            if options.get(name) is None:
                values.pop(name, None)
    if not {"model", "model_base_url", "model_api_key"} & set(values):
        # A URL or a key without a model is for a model that is not named yet: no provider's key chooses one then.
        values["keyed_model"] = keyed = keyed_model(environ)
        if keyed is not None:
            values["model"] = keyed.model
    if "data_dir" not in values:
        values["data_dir"] = _default_data_dir(environ)
    if "database" not in values:
        values["database"] = f"{SQLITE}{values['data_dir'] / 'holdfast.db'}"
    if is_postgres(values["database"]):
        values["database_url"] = Secret(values["database"])
        values["database"] = without_password(values["database"])
    elif "database_direct" in values:
        raise ConfigError("database_direct", "is set, but the database is not PostgreSQL's", allowed="not set")
    return Config(**values, bounds=Bounds(**bounds), warnings=_warnings(environ))


def _find(setting: Setting, options: Mapping[str, object], environ: Mapping[str, str]) -> Given | None:
    option = options.get(setting.name)
    if option is not None:
        return Given(setting.option or setting.name, option)
    variable = environ.get(setting.env, "")
    return Given(setting.env, variable) if variable.strip() else None


def _names_another_provider(environ: Mapping[str, str], chosen: str) -> bool:
    """Whether an option chose a model of another provider than the variable for the model does. The key and the URL in
    the environment are that provider's then."""
    named, slash, _ = environ.get(f"{PREFIX}MODEL", "").strip().partition("/")
    return bool(slash) and named != chosen.partition("/")[0]


def _refuse_unknown(options: Mapping[str, object]) -> None:
    names = [setting.name for setting in SETTINGS]
    for option in options:
        if option not in names:
            nearest = difflib.get_close_matches(option, names, n=1)
            raise ConfigError(option, "is not a setting", allowed=nearest[0] if nearest else ", ".join(names))


def _warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each unknown variable with our prefix, which is most likely a typing error."""
    known = {setting.env for setting in SETTINGS}
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known | RESERVED)
    return tuple(f"{name} is set, but there is no such setting.{_hint(name)}" for name in unknown)


def _hint(variable: str) -> str:
    names = [setting.name for setting in SETTINGS]
    nearest = difflib.get_close_matches(variable.removeprefix(PREFIX).lower(), names, n=1)
    return f" Did you mean {PREFIX}{nearest[0].upper()}?" if nearest else ""


# The page

PAGE: Final = """\
<!-- Generated by `make docs` from src/holdfast/config.py and src/holdfast/session/bounds.py. Edit those. -->

# Configuration

Nothing needs to be set. An option beats an environment variable, which beats the default; an empty variable is the
same as an unset one. All settings are checked before anything starts: a wrong one ends the command with the error
`config_invalid`, which names the setting and the allowed values. A variable that starts with `HOLDFAST_` and is not
on this page gives a warning.

## The process

{process}

## The bounds of a session

Everything that grows has one of these bounds.

{bounds}

## Reserved

Other programs of Holdfast read these variables. Setting them here is allowed and has no effect: {reserved}.
"""


def page() -> str:
    """docs/configuration.md."""
    return PAGE.format(
        process="\n".join(_entry(setting) for setting in SETTINGS if not setting.is_bound),
        bounds="\n".join(_entry(setting) for setting in SETTINGS if setting.is_bound),
        reserved=", ".join(f"`{name}`" for name in sorted(RESERVED)),
    )


def _entry(setting: Setting) -> str:
    option = f", `{setting.option}`" if setting.option else ""
    default = f"Default: `{setting.default}`." if setting.default else "Not set by default."
    return f"- `{setting.env}`{option}: {setting.meaning} {default}"


if __name__ == "__main__":
    sys.stdout.write(page())
