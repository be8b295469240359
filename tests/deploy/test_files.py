"""Every setting, option, metric, file and extra that deploy/ and the operator's pages name exists. The examples are not
run here; these checks keep them up to date."""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from holdfast.cli.commands import COMMANDS, load_command
from holdfast.config import PREFIX, RESERVED, SETTINGS, Config, load
from holdfast.observability.figures import END_REASONS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ENV_FILES = sorted(DEPLOY.glob("*.env.example"))
PAGES = tuple(ROOT / "docs" / name for name in ("operations.md", "scale.md", "cluster.md", "postgres.md"))
EVERYTHING = (*(path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and path.suffix != ".env"), *PAGES)

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "holdfast"}

AFTER_DRAINING_SECONDS = 15.0
"""The time that a process may take after its drain, to reset streams and to send the last hints and spans."""


def each(paths: tuple[Path, ...] | list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=[str(path.relative_to(ROOT)) for path in paths])


# Names


@each(EVERYTHING)
def test_every_named_setting_exists(path: Path) -> None:
    known = {setting.env for setting in SETTINGS} | RESERVED | {"HOLDFAST_DEBUG"}
    named = set(re.findall(rf"\b{PREFIX}[A-Z][A-Z_]*[A-Z]\b", path.read_text("utf-8")))
    assert named - known == set()


def unknown_options(words: list[str]) -> list[str]:
    """Options that the command does not have; or the command itself, if it does not exist."""
    if words[0] not in COMMANDS:
        return [f"no command: {words[0]}"]
    command, rest = load_command(words[0]), words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        return [f"no command: {' '.join(words)}"]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    given = {word.partition("=")[0] for word in rest if word.startswith("--")}
    return sorted(given - known - {"--help"})


def said_in(page: Path) -> Iterator[list[str]]:
    """The commands of Holdfast in the code of a page."""
    text = page.read_text("utf-8")
    code = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "\n".join(code).replace("\\\n", " ").splitlines() + re.findall(r"`([^`\n]+)`", text)
    for line in lines:
        if (found := re.search(r"(?:^|[\s;&|/])holdfast (?!\[)([a-z].*)", line)) is not None:
            yield re.split(r"\s+#|[|;&>]", found[1])[0].split()


@each(PAGES)
def test_every_command_on_a_page_exists_with_its_options(path: Path) -> None:
    commands = list(said_in(path))
    assert commands, "none was found: the test looks wrong"
    assert [wrong for words in commands for wrong in unknown_options(words)] == []


def test_unknown_commands_and_options_are_detected() -> None:
    assert unknown_options(["worker", "--concurency", "5"]) == ["--concurency"]
    assert unknown_options(["cluster", "stats"]) == ["no command: cluster stats"]
    assert unknown_options(["serve", "--no-work", "--metrics-port=1"]) == []


@cache
def figures() -> frozenset[str]:
    """The names of all metrics in the code."""
    files = (ROOT / "src" / "holdfast").rglob("*.py")
    return frozenset(name for file in files for name in re.findall(r'"(holdfast_[a-z_]+)"', file.read_text("utf-8")))


@each(EVERYTHING)
def test_every_named_metric_exists(path: Path) -> None:
    known = figures()
    assert {"holdfast_queue_age_seconds", "holdfast_commit_seconds", "holdfast_redis_up"} <= known
    named = set(re.findall(r"\bholdfast_[a-z_]+", path.read_text("utf-8")))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} - known == set()


@each(PAGES)
def test_every_linked_file_exists(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


# Examples to copy


def variables(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def settings_of(environ: dict[str, str]) -> Config:
    return load({}, {"HOME": "/nonexistent", **environ})


HOLDFAST_ENV = variables((DEPLOY / "holdfast.env.example").read_text())


@each(ENV_FILES)
def test_every_secret_of_an_example_says_change_me(path: Path) -> None:
    secrets = [value for name, value in variables(path.read_text()).items() if re.search("PASSWORD|SECRET|_KEY", name)]
    assert all(value.startswith("change-me") for value in secrets)


def test_the_settings_of_the_example_are_valid_and_fit_the_servers() -> None:
    config = settings_of(HOLDFAST_ENV)
    assert (config.is_postgres, config.warnings, config.auth) == (True, (), "keys")
    assert config.redis is not None
    assert config.secret_key is not None
    assert {str(Path(folder).parent) for folder in config.user_directories} <= set(config.shared_directories)
    servers = variables((DEPLOY / "servers.env.example").read_text())
    assert f":{servers['POSTGRES_PASSWORD']}@postgres:" in HOLDFAST_ENV["HOLDFAST_DATABASE"]
    assert f":{servers['VALKEY_PASSWORD']}@valkey:" in HOLDFAST_ENV["HOLDFAST_REDIS"]


# compose.yaml


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)(s|min|m|)", text.strip()).groups()  # type: ignore[union-attr]
    return float(number) * (60 if unit in ("min", "m") else 1)


def test_there_are_two_servers_and_two_workers_each_with_its_own_name_and_data() -> None:
    commands = [service["command"][0] for service in OURS.values()]
    assert (commands.count("serve"), commands.count("worker")) == (2, 2)
    running = {name: service for name, service in OURS.items() if service["command"][0] in ("serve", "worker")}
    assert [service["environment"]["HOLDFAST_NODE"] for service in running.values()] == list(running)
    data = [volume for service in running.values() for volume in service["volumes"] if ":/var/lib/holdfast" in volume]
    assert len(set(data)) == len(running)
    shared = HOLDFAST_ENV["HOLDFAST_SHARED_DIRECTORIES"]
    assert all(f"work:{shared}" in service["volumes"] for service in running.values())
    named = {
        volume.partition(":")[0] for service in COMPOSE["services"].values() for volume in service.get("volumes", ())
    }
    assert named == set(COMPOSE["volumes"])
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert [port.partition(":")[2] for port in ports] == ["8787", "8787"], "nothing else is open to the world"


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_process_of_the_example_can_be_started_and_ended(name: str) -> None:
    service = OURS[name]
    entry = service.get("entrypoint", ["holdfast"])
    words = [*entry[1:], *service["command"]]
    assert unknown_options(words) == []
    environ = {**docker_environment(), **HOLDFAST_ENV, **service.get("environment", {})}
    config = settings_of({name: value for name, value in environ.items() if name.startswith(PREFIX)})
    assert config.warnings == ()
    assert seconds(service["stop_grace_period"]) >= config.drain_seconds + AFTER_DRAINING_SECONDS
    assert service["init"], "or nobody buries the supervisor of commands"
    for other in service.get("depends_on", ()):
        assert other in COMPOSE["services"]


def test_the_servers_of_the_example_have_health_checks() -> None:
    for name in ("postgres", "valkey"):
        service = COMPOSE["services"][name]
        assert service["healthcheck"]["test"]
        assert service["env_file"] == "servers.env"
    assert (DEPLOY / COMPOSE["services"]["serve-1"]["build"]["context"] / "deploy/Dockerfile").resolve().exists()


# Dockerfile


def docker_lines() -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def docker_environment() -> dict[str, str]:
    lines = [line.removeprefix("ENV ") for line in docker_lines() if line.startswith("ENV ")]
    return dict(word.split("=", 1) for line in lines for word in line.split())


def test_the_image_is_built_from_existing_files_and_extras() -> None:
    copied = [line.split()[1:-1] for line in docker_lines() if line.startswith("COPY ") and "--from" not in line]
    for source in (name for names in copied for name in names):
        assert (ROOT / source).exists(), source
        assert f"!{source}\n" in (DEPLOY / "Dockerfile.dockerignore").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["readme"] in copied[0]


def test_everything_that_the_image_fetches_has_a_pinned_hash() -> None:
    (run,) = [line for line in docker_lines() if "pip install" in line]
    groups = set(re.findall(r"^# == (\w+) :", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    named = [set(found.split("|")) for found in re.findall(r"\$3 ~ /\^\(?([a-z|]+)\)?\$/", run)]
    assert named == [{"build"}, {"run", "extras"}]
    assert set.union(*named) <= groups
    for install in re.findall(r"pip install ([^&]*)", run):
        assert "--require-hashes" in install or "--no-deps" in install


def test_every_image_can_be_named_with_its_digest() -> None:
    """Tags may be moved. Operators look up the digests themselves, in a registry that they trust."""
    given = variables((DEPLOY / "images.env.example").read_text())
    assert all(re.fullmatch(r"[a-z/]+:[\w.-]+(@sha256:[0-9a-f]{64})?", image) for image in given.values())
    defaults = {name: image.partition("@")[0] for name, image in given.items()}
    foreign = [service["image"] for service in COMPOSE["services"].values() if service["image"] != "holdfast"]
    named = [*foreign, COMPOSE["x-process"]["build"]["args"]["PYTHON"]]
    assert sorted(named) == sorted(f"${{{name}:-{image}}}" for name, image in defaults.items())
    assert f"ARG PYTHON={defaults['PYTHON_IMAGE']}" in docker_lines()
    assert {line.split()[1] for line in docker_lines() if line.startswith("FROM ")} == {"${PYTHON}"}


def test_the_image_runs_unprivileged_and_has_a_health_check() -> None:
    lines = docker_lines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["holdfast"]
    config = settings_of({name: value for name, value in docker_environment().items() if name.startswith(PREFIX)})
    assert config.warnings == ()
    (health,) = [line for line in lines if line.startswith("HEALTHCHECK")]
    assert f"127.0.0.1:{config.metrics_port}/healthz" in health
    (exposed,) = [line.split()[1:] for line in lines if line.startswith("EXPOSE ")]
    assert exposed == [str(config.port), str(config.metrics_port)]


@each(EVERYTHING)
def test_no_registry_and_no_index_is_named(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.search(r"index-url|trusted-host|pypi\.|ghcr\.io|docker\.io|quay\.io|registry\.", text)


# systemd


def unit(path: Path) -> dict[str, list[str]]:
    """The lines of a unit by name; a name may occur more than once."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@each(UNITS)
def test_a_unit_has_the_right_start_stop_and_restart_settings(path: Path) -> None:
    found = unit(path)
    (start,) = found["ExecStart"]
    program, *words = start.split()
    assert program == "/opt/holdfast/bin/holdfast"
    assert unknown_options(words) == []
    environ = {**HOLDFAST_ENV, **dict(line.split("=", 1) for line in found["Environment"])}
    config = settings_of(environ)
    assert config.warnings == ()
    assert seconds(found["TimeoutStopSec"][0]) >= config.drain_seconds + AFTER_DRAINING_SECONDS
    assert (found["Restart"], found["StartLimitIntervalSec"], found["KillSignal"]) == (["always"], ["0"], ["SIGTERM"])
    assert found["EnvironmentFile"] == ["/etc/holdfast/holdfast.env"]
    assert environ["HOLDFAST_DATA_DIR"] == f"/var/lib/{found['StateDirectory'][0]}"
    assert any(config.shared_directories[0] in paths for paths in found["ReadWritePaths"])


@each(UNITS)
def test_commands_outlive_the_unit_that_started_them(path: Path) -> None:
    """Commands and their supervisor are in the unit's control group."""
    found = unit(path)
    assert (found["KillMode"], found["OOMPolicy"]) == (["process"], ["continue"])
    assert not {"PrivateTmp", "RuntimeDirectory", "DynamicUser"} & set(found), "these go with the unit"


@each(UNITS)
def test_the_sandbox_of_commands_works_within_a_unit(path: Path) -> None:
    in_its_way = {"ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset", "RestrictNamespaces"}
    assert not in_its_way & set(unit(path))


def test_all_units_have_the_same_confinement() -> None:
    """A supervisor that one unit started runs the commands of both."""
    differs = {"Description", "ExecStart"}
    serve, worker = ({name: lines for name, lines in unit(path).items() if name not in differs} for path in UNITS)
    assert serve == worker


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@each(UNITS)
def test_systemd_understands_a_unit(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/opt/holdfast/bin/holdfast", shutil.which("true") or "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, env=dict(os.environ)
    )
    told = [line for line in done.stderr.splitlines() if path.name in line]
    assert told == []


# Prometheus


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def test_every_alert_has_a_severity_and_a_summary() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 8
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert 'job="holdfast"' in rule["expr"]


def test_every_alert_is_explained_on_the_page_for_operators() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []


def test_labels_of_alerts_have_existing_values() -> None:
    text = "\n".join(rule["expr"] for rule in rules())
    assert set(re.findall(r'reason="([a-z]+)"', text)) <= set(END_REASONS)
    assert set(re.findall(r'status="([0-9x]+)"', text)) <= {f"{kind}xx" for kind in range(1, 6)}
