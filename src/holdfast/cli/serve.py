"""`holdfast serve`: sessions over HTTP, and a worker that runs them, in one process.

It ends as it should be ended: nobody new is let in, sessions come to the end of their step or are handed over, and a
stream that could not be told to its end is reset. A second signal ends it at once, which loses nothing either.
"""

import asyncio
import errno
import ipaddress
import os
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.app import Runtime
from holdfast.cli.errors import USAGE, WORLD, Refusal
from holdfast.cli.opening import log_to_file
from holdfast.config import Config
from holdfast.server.http.app import application
from holdfast.server.http.gate import LOOPBACK_NAMES, Names
from holdfast.server.http.identity import Identities
from holdfast.server.http.keys import KeyRing
from holdfast.server.http.listener import Listener, bind
from holdfast.server.http.metrics import Metrics
from holdfast.server.http.policy import Policies, Policy
from holdfast.server.http.service import Offered, Service, Settings
from holdfast.server.http.start_token import StartToken, new_token, remove_token, write_token
from holdfast.tools.built_in import COPILOT_SHELL, HOLDFAST_SHELL, HOLDFAST_TOOLS
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.models.model import Model

FINISH_SECONDS: Final = 2.0
"""How long an answer that is under way may take after everything else has ended."""

QUIET_SECONDS: Final = 1.0

RUN_COMMANDS: Final = frozenset(found.name for found in (*HOLDFAST_SHELL, *COPILOT_SHELL))
"""Tools that can do whatever the server's user can, unless they run in a sandbox."""


def refuse_redis(given: str | None, environ: Mapping[str, str]) -> None:
    """Its address may hold a password: it is not repeated."""
    if given or environ.get("HOLDFAST_REDIS", "").strip():
        source = "--redis" if given else "HOLDFAST_REDIS"
        raise Refusal(
            "config_invalid",
            f"{source} is set, but this release runs on one machine and has no use for Redis. Leave it out.",
        )


async def serve(config: Config) -> int:
    """Until somebody ends it."""
    is_local = _is_loopback(config.host)
    if config.auth == "none" and not is_local:
        raise Refusal(
            "config_invalid",
            f"--auth none is for this machine only, and {config.host} is open to others. Make keys with `holdfast keys "
            "create` and serve with --auth keys, or listen on 127.0.0.1.",
        )
    log_to_file(config)
    bound = _bound(config)
    port = int(bound.getsockname()[1])
    stopping = _heed_signals()
    async with Runtime(config=config, model=_demo(config)) as runtime, _let_in(config, runtime, port) as identities:
        service = _service(config, runtime, identities)
        listener = Listener(application(service, _names(config, is_local=is_local)))
        await listener.listen(bound)
        _say_hello(config, port, identities)
        importing = asyncio.create_task(_import_models())
        await stopping.wait()
        importing.cancel()
        await _drain(config, runtime, service, listener)
    return 0


# Who may come in, and under which names


@asynccontextmanager
async def _let_in(config: Config, runtime: Runtime, port: int) -> AsyncIterator[Identities]:
    if config.auth == "keys":
        yield KeyRing(runtime.store, runtime.clock)
        return
    path, token = _token_file(config, port), new_token()
    write_token(path, token)
    try:
        yield StartToken(runtime.owner, token, cookie_name=f"holdfast_{port}")
    finally:
        remove_token(path, token)


def _token_file(config: Config, port: int) -> Path:
    return config.data_dir / f"serve-{port}.token"


def _names(config: Config, *, is_local: bool) -> Names:
    return Names(
        hosts=frozenset({*LOOPBACK_NAMES, config.host.lower(), *(name.lower() for name in config.allowed_hosts)}),
        is_local=is_local,
        origins=frozenset(config.allowed_origins),
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


# What is served


def _service(config: Config, runtime: Runtime, identities: Identities) -> Service:
    metrics = Metrics(runtime.clock)
    runtime.operations.live.watch(metrics.hear)

    async def models() -> tuple[Offered, ...]:
        names = dict.fromkeys((config.model, "demo"))
        return tuple(Offered(name=name, is_default=name == config.model) for name in names)

    return Service(
        operations=runtime.operations,
        tasks=runtime.tasks,
        live=runtime.operations.live,
        clock=runtime.clock,
        bounds=config.bounds,
        settings=Settings(
            model=config.model,
            tools=HOLDFAST_TOOLS,
            known_tools=runtime.tool_names,
            directory=str(Path.cwd()) if config.auth == "none" else None,
            max_body_bytes=config.max_body_bytes,
            max_import_bytes=config.max_import_bytes,
            follow_ups_per_minute=config.follow_ups_per_minute,
            streams_per_owner=config.streams_per_owner,
            replay_seconds=config.replay_seconds,
        ),
        identities=identities,
        policies=Policies(user=_user_policy(config)),
        credentials=runtime.credentials,
        metrics=metrics,
        gauges=lambda: _gauges(runtime),
        models=models,
        check_model=lambda name: _check_model(config, name),
    )


def _check_model(config: Config, name: str) -> None:
    """Raises `ModelNotUsable` for one that this server could not ask. Nothing is called."""
    from holdfast.models.catalogue import open_model  # deferred: HTTP takes a while to import

    key = config.model_api_key
    open_model(name, base_url=config.model_base_url, api_key=key.reveal() if key else None, environ=os.environ)


def _user_policy(config: Config) -> Policy:
    """What sessions may ask for that are not an admin's."""
    harmless = tuple(name for name in HOLDFAST_TOOLS if config.sandbox != "none" or name not in RUN_COMMANDS)
    return Policy(
        models=config.user_models or (config.model,),
        tools=config.user_tools or harmless,
        directories=config.user_directories,
        rules=config.user_rules,
        providers=False,
    )


def _gauges(runtime: Runtime) -> Mapping[str, tuple[str, float]]:
    return {
        "holdfast_sessions_held": ("Sessions that this process runs.", float(runtime.worker.holding)),
        "holdfast_lease_losses_total": ("Sessions that were taken from it.", float(runtime.worker.lost_leases)),
    }


def _demo(config: Config) -> "Model | None":
    """The model that needs nothing: it alone is opened without all that calling a provider takes to import."""
    if config.model != "demo":
        return None
    from holdfast.models.demo import demo_model

    return demo_model()


async def _import_models() -> None:
    """What calling a provider takes, brought in while nobody waits for it."""
    await asyncio.sleep(QUIET_SECONDS)
    await asyncio.to_thread(import_module, "holdfast.models.catalogue")


# Beginning and end


def _bound(config: Config) -> socket.socket:
    try:
        return bind(config.host, config.port)
    except OSError as error:
        raise Refusal(
            "address_not_usable",
            f"Can't listen on {config.host}, port {config.port}: {error.strerror or error}.",
            exit_code=WORLD if error.errno == errno.EADDRINUSE else USAGE,
        ) from None


def _heed_signals() -> asyncio.Event:
    """Set by the first signal. The second does not wait for anything: what was acknowledged is on disk."""
    stopping = asyncio.Event()

    def heed(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, heed, number)
    return stopping


async def _drain(config: Config, runtime: Runtime, service: Service, listener: Listener) -> None:
    service.is_draining = True
    listener.stop_accepting()
    if runtime.worker.holding:
        _say("Ending: what runs comes to the end of its step, or is handed over. Ctrl-C again ends at once.")
    # Meanwhile streams go on: a turn that ends now is told to its end.
    await runtime.worker.stop(grace_seconds=config.drain_seconds)
    service.streams.break_all()
    await listener.finish(seconds=FINISH_SECONDS)


def _say_hello(config: Config, port: int, identities: Identities) -> None:
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{host}:{port}"
    _say(f"Holdfast {__version__} serves {url} with the model {config.model}. Sessions are in {config.database_path}.")
    if isinstance(identities, StartToken):
        token = _token_file(config, port).read_text("ascii").strip()
        _say(f"Open   {url}/?token={token}")
        setting = f"TOKEN=$(cat {shlex.quote(str(_token_file(config, port)))})"
    else:
        _say("Make a key with `holdfast keys create --name NAME --owner OWNER`.")
        setting = "TOKEN=hf_..."
    _say("Try    in another terminal:")
    for line in (setting, *_examples(url)):
        _say(f"  {line}")
    _say("End it with Ctrl-C. Whatever runs then goes on when it is started again.")


def _examples(url: str) -> tuple[str, ...]:
    asks = 'curl -s -H "Authorization: Bearer $TOKEN"'
    return (
        f"""{asks} {url}/v1/sessions -d '{{"id": "first"}}'""",
        f"""{asks} -N {url}/v1/sessions/first/stream -d '{{"text": "write a note"}}'""",
        f"{asks} {url}/v1/sessions/first/requests",
        f"""{asks} {url}/v1/sessions/first/requests/REQUEST -d '{{"decision": "approve"}}'""",
        f"{asks} {url}/v1/sessions/first",
    )


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Nobody listens; we serve all the same.
