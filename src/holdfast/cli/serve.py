"""`holdfast serve`: sessions over HTTP, and a worker that runs them, in one process.

On the first signal it drains: it accepts no new connection, sessions reach the end of their step or are handed over,
and streams that are still open then are reset. A second signal ends it at once, which loses nothing either.
"""

import asyncio
import functools
import ipaddress
import logging
import shlex
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from holdfast.app import Runtime, local_actor
from holdfast.cli.errors import Refusal, address_refusal
from holdfast.cli.process import print_line, until_stopped, watch_signals
from holdfast.cli.runtime import (
    check_thinking,
    demo_or_none,
    import_models_later,
    known_info,
    log_service,
    open_configured_model,
)
from holdfast.cli.settings import warn_without_redis
from holdfast.cli.telemetry import metrics_endpoint, runtime_metrics, span_export
from holdfast.cli.tokens import check_tokens, keys_and_tokens
from holdfast.config import Config
from holdfast.observability.logs import hide_in_logs
from holdfast.protocol.model import OfferedModel
from holdfast.protocol.webhook_signature import key_of
from holdfast.server.audit_retention import keep_trimmed
from holdfast.server.http.app import application
from holdfast.server.http.credit_hook import CreditHook
from holdfast.server.http.gate import LOOPBACK_NAMES, ServerNames
from holdfast.server.http.identity import Identities
from holdfast.server.http.keys import KeyRing
from holdfast.server.http.listener import HttpListener, bind
from holdfast.server.http.policy import Policies, Policy
from holdfast.server.http.resets import Resets
from holdfast.server.http.service import HttpService, HttpSettings
from holdfast.server.http.start_token import StartToken, remove_token, token_for, write_token
from holdfast.store.audit import audit_entry
from holdfast.tools.built_in import COPILOT_SHELL, HOLDFAST_SHELL, HOLDFAST_TOOLS
from holdfast.tools.user_directories import UserDirectories
from holdfast.version import __version__
from holdfast.webhooks.addresses import ReceiverRules

FINISH_SECONDS: Final = 2.0
"""How long a response that is under way may take after everything else has ended."""

AUDITED: Final = (
    "auth",
    "jwt_jwks",
    "jwt_issuer",
    "jwt_audience",
    "jwt_algorithms",
    "jwt_owner_claim",
    "jwt_owners",
    "jwt_role_claim",
    "jwt_admin_roles",
    "jwt_user_roles",
    "sandbox",
    "sandbox_network",
    "commands_without_sandbox",
    "user_directories",
    "user_models",
    "user_tools",
    "user_rules",
    "allowed_origins",
    "max_running_turns_per_owner",
    "max_turns_in_flight_per_owner",
    "max_sessions_per_owner",
    "max_bytes_per_owner",
    "streams_per_owner",
    "follow_ups_per_minute",
    "audit_days",
)
"""Settings that decide who may do what and how much. None is a secret. The audit log has those that are not the
default, at each start."""

RUN_COMMANDS: Final = frozenset(found.name for found in (*HOLDFAST_SHELL, *COPILOT_SHELL))
"""Tools that can do everything that the server's user can, unless they run in a sandbox."""

log = logging.getLogger(__name__)


async def serve(config: Config, *, works: bool = True) -> int:
    """Serve until a signal ends it. Unless it `works`, other processes on the same database run the sessions."""
    if config.auth == "none" and not _is_loopback(config.host):
        raise Refusal(
            "config_invalid",
            f"--auth none is for this machine only, and {config.host} can be reached from others. Make keys with "
            "`holdfast keys create` and serve with --auth keys, or listen on 127.0.0.1.",
        )
    check_tokens(config)
    check_thinking(config)
    log_service(config)
    warn_without_redis(config)
    bound = _bound(config)
    stopping = watch_signals()
    with span_export("holdfast-serve"):
        await _serve(config, bound, stopping, works=works)
    return 0


async def _serve(config: Config, bound: socket.socket, stopping: asyncio.Event, *, works: bool) -> None:
    port = int(bound.getsockname()[1])
    async with (
        Runtime(config=config, model=demo_or_none(config), work=works, role="serve") as runtime,
        _identities(config, runtime, port) as identities,
        AsyncExitStack() as stack,
    ):
        hide_in_logs(runtime.shell.desk.redaction.text)
        resets = await stack.enter_async_context(_resets(config, runtime))
        service = _service(config, runtime, identities, resets)
        listener = HttpListener(application(service, _names(config, is_local=_is_loopback(config.host))))
        monitor = metrics_endpoint(config, runtime, page=service.metrics_page, is_draining=lambda: service.is_draining)
        metrics_port = await stack.enter_async_context(monitor)
        await _tell_start(config, runtime, port)
        await listener.listen(bound)
        _print_greeting(config, port, identities)
        if metrics_port is not None:
            print_line(f"Metrics are on port {metrics_port}: /metrics, /healthz, /readyz.")
        if not works:
            print_line("Sessions are run by other processes: start `holdfast worker` on the same database.")
        beside = [asyncio.create_task(import_models_later())]
        if config.audit_days:
            actor = local_actor(config, "serve")
            beside.append(
                asyncio.create_task(keep_trimmed(runtime.store, runtime.clock, actor, days=config.audit_days))
            )
        try:
            await until_stopped(stopping, runtime)
        finally:
            for task in beside:
                task.cancel()
            await _drain(config, runtime, service, listener)


async def _tell_start(config: Config, runtime: Runtime, port: int) -> None:
    """Tell the audit log which settings decide from now on what callers may do: settings change only with a start."""
    default = Config(data_dir=config.data_dir, database=config.database)
    changed = {name: getattr(config, name) for name in AUDITED if getattr(config, name) != getattr(default, name)}
    detail = msgspec.json.encode(changed).decode()
    actor = local_actor(config, "serve")
    target = f"{config.host}:{port}"
    await runtime.store.audit(
        audit_entry(runtime.clock.now_ms(), actor, "server.started", target=target, detail=detail)
    )


# Authentication and host names


@asynccontextmanager
async def _identities(config: Config, runtime: Runtime, port: int) -> AsyncIterator[Identities]:
    if config.auth == "keys":
        keys = KeyRing(runtime.store, runtime.clock)
        if config.jwt_jwks is None:
            yield keys
            return
        async with keys_and_tokens(config, keys, runtime.clock) as both:
            yield both
        return
    path = _token_file(config, port)
    token = token_for(path)
    runtime.shell.desk.redaction.learn((token,))
    write_token(path, token)
    try:
        yield StartToken(runtime.owner, token)
    finally:
        remove_token(path, token)


def _token_file(config: Config, port: int) -> Path:
    return config.data_dir / f"serve-{port}.token"


def _names(config: Config, *, is_local: bool) -> ServerNames:
    return ServerNames(
        hosts=frozenset({*LOOPBACK_NAMES, config.host.lower(), *(name.lower() for name in config.allowed_hosts)}),
        is_local=is_local,
        origins=frozenset(config.allowed_origins),
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


# The service


@asynccontextmanager
async def _resets(config: Config, runtime: Runtime) -> AsyncIterator[Resets | None]:
    """The resets that people may ask for, and the refunds of those that came to nothing; None without a credit hook."""
    if config.credit_url is None or config.credit_secret is None:
        yield None
        return
    from holdfast.webhooks.receivers import HttpReceivers  # deferred: importing HTTP is slow

    url = config.credit_url
    receivers = HttpReceivers(ReceiverRules((urlsplit(url).hostname or "",)))  # The operator named the host.

    async def post(body: bytes, headers: Mapping[str, str]) -> int | None:
        answer = await receivers.post(url, headers, body)
        if answer.status is None:
            log.warning("the credit hook did not answer: %s", answer.fault)
        return answer.status

    hook = CreditHook(post, key_of(config.credit_secret.reveal()), runtime.clock)
    resets = Resets(runtime.operations, hook, runtime.clock)
    refunding = asyncio.create_task(resets.keep_refunding())
    try:
        yield resets
    finally:
        refunding.cancel()
        await asyncio.gather(refunding, return_exceptions=True)


def _service(config: Config, runtime: Runtime, identities: Identities, resets: Resets | None) -> HttpService:
    @functools.cache
    def offered() -> tuple[OfferedModel, ...]:
        names = dict.fromkeys(filter(None, (config.model, config.model_advanced, "demo")))
        return tuple(_offered(config, name) for name in names)

    async def models() -> tuple[OfferedModel, ...]:
        return offered()

    def check_model(name: str) -> None:
        open_configured_model(config, name)

    refused = RUN_COMMANDS if config.refuses_commands else frozenset[str]()
    return HttpService(
        operations=runtime.operations,
        tasks=runtime.task_operations,
        webhooks=runtime.webhook_operations,
        files=runtime.file_operations,
        live=runtime.operations.live,
        clock=runtime.clock,
        bounds=config.bounds,
        settings=HttpSettings(
            model=config.model,
            model_advanced=config.model_advanced,
            thinking=config.thinking,
            titles=config.titles,
            tools=tuple(name for name in HOLDFAST_TOOLS if name not in refused),
            known_tools=runtime.tool_names,
            refused_tools=refused,
            directory=str(Path.cwd()) if config.auth == "none" else None,
            max_body_bytes=config.max_body_bytes,
            max_file_bytes=config.max_file_bytes,
            max_import_bytes=config.max_import_bytes,
            max_import_events=config.max_import_events,
            follow_ups_per_minute=config.follow_ups_per_minute,
            streams_per_owner=config.streams_per_owner,
            replay_seconds=config.replay_seconds,
        ),
        identities=identities,
        policies=Policies(user=_user_policy(config)),
        credentials=runtime.credentials,
        metrics=runtime_metrics(runtime),
        observer=runtime.observer,
        models=models,
        check_model=check_model,
        redis_state=lambda: runtime.redis_state,
        resets=resets,
        billing_key=None if config.billing_secret is None else key_of(config.billing_secret.reveal()),
    )


def _offered(config: Config, name: str) -> OfferedModel:
    named = OfferedModel(name=name, is_default=name == config.model)
    info = known_info(config, name)
    if info is None:
        return named
    return msgspec.structs.replace(
        named,
        window=info.window,
        is_known=info.is_known,
        max_output=info.max_output,
        images=info.takes_images,
        tools=info.takes_tools,
        thinking=info.takes_thinking,
    )


def _user_policy(config: Config) -> Policy:
    """The policy for the sessions of owners who are no admins."""
    safe_tools = tuple(name for name in HOLDFAST_TOOLS if config.sandbox != "none" or name not in RUN_COMMANDS)
    return Policy(
        models=config.user_models or tuple(filter(None, (config.model, config.model_advanced))),
        tools=config.user_tools or safe_tools,
        directories=UserDirectories(config.user_directories),
        rules=config.user_rules,
        providers=False,
    )


# Start and end


def _bound(config: Config) -> socket.socket:
    try:
        return bind(config.host, config.port)
    except OSError as error:
        raise address_refusal(error, purpose="listen", host=config.host, port=config.port) from None


async def _drain(config: Config, runtime: Runtime, service: HttpService, listener: HttpListener) -> None:
    service.is_draining = True
    listener.stop_accepting()
    if runtime.worker.sessions_held:
        print_line("Ending: each session ends its step, or is handed over. Ctrl-C again ends at once.")
    # Streams stay open meanwhile, so that clients see the end of a turn that ends now.
    await runtime.worker.stop(grace_seconds=config.drain_seconds)
    service.streams.break_all()
    await listener.finish(seconds=FINISH_SECONDS)


def _print_greeting(config: Config, port: int, identities: Identities) -> None:
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{host}:{port}"
    print_line(
        f"Holdfast {__version__} serves {url} with the model {config.model}. Sessions are in {config.database_shown}."
    )
    if config.keyed_model is not None:
        print_line(config.keyed_model.explain())
    if isinstance(identities, StartToken):
        token = _token_file(config, port).read_text("ascii").strip()
        print_line(f"Open   {url}/#token={token}")
        setting = f"TOKEN=$(cat {shlex.quote(str(_token_file(config, port)))})"
    else:
        if config.refuses_commands:
            print_line("Commands are refused, because there is no sandbox: see HOLDFAST_COMMANDS_WITHOUT_SANDBOX.")
        elif config.sandbox == "none":
            print_line("Commands run without a sandbox: with an admin's key, they can do all that this user can.")
        print_line("Make a key with `holdfast keys create --name NAME --owner OWNER`.")
        setting = "TOKEN=hf_..."
    print_line("Try    in another terminal:")
    for line in (setting, *_examples(url)):
        print_line(f"  {line}")
    print_line("End it with Ctrl-C. Turns that run then continue when it is started again.")


def _examples(url: str) -> tuple[str, ...]:
    curl = 'curl -s -H "Authorization: Bearer $TOKEN"'
    return (
        f"""{curl} {url}/v1/sessions -d '{{"id": "first"}}'""",
        f"""{curl} -N {url}/v1/sessions/first/stream -d '{{"text": "write a note"}}'""",
        f"{curl} {url}/v1/sessions/first/requests",
        f"""{curl} {url}/v1/sessions/first/requests/REQUEST -d '{{"decision": "approve"}}'""",
        f"{curl} {url}/v1/sessions/first",
    )
