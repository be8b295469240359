"""The layout, stated as what each folder may import: from pure to worldly, and never back.

The table is the one in docs/ARCHITECTURE.md. A folder that is not in it needs a row before it needs code.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = "holdfast"

PURE = {"events", "shell_grammar"}
SEAMS = PURE | {
    "session",
    "store",
    "live",
    "models",
    "files",
    "tools",
    "commands",
    "tasks",
    "webhooks",
    "observability",
}
RUNTIME = SEAMS | {"protocol", "turns", "workers", "server"}
ROOT = {"app", "cli", "client", "config", "event_loop", "testing", "version"}

MAY_IMPORT: dict[str, set[str]] = {
    "version": set(),
    "event_loop": set(),
    "large_work": set(),
    "shell_grammar": set(),
    "events": set(),
    # The values of `live` are what a reader gets; nothing there does anything.
    "protocol": PURE | {"live.live"},
    "session": PURE,
    "store": PURE,
    "live": PURE,
    "models": PURE | {"large_work"},
    "files": PURE | {"store"},
    "tools": PURE | {"store", "files", "commands", "tasks"},
    "commands": PURE,
    "tasks": PURE | {"session", "store", "live", "commands"},
    # The sealer is chosen by the root: here it is only a type.
    "webhooks": PURE | {"store", "protocol", "models.sealer"},
    "observability": PURE | {"store", "models", "version"},
    "turns": SEAMS | {"large_work"},
    "workers": SEAMS | {"turns"},
    "server": SEAMS | {"protocol", "version"},
    # For the tests of those who use the package; what proves Holdfast itself is in `proof`.
    "testing": {"events", "store", "models"},
    # Only files, which the server reads as such.
    "web": set(),
    "config": {"events.ids", "session.bounds", "models.providers", "models.stated_facts", "webhooks.addresses"},
    # A program that uses a server has nothing of it in itself: what both know is what goes between them.
    "client": PURE | {"live", "protocol", "config", "version"},
    "app": RUNTIME | ROOT,
    "cli": RUNTIME | ROOT,
    # The public names, and `python -m holdfast`.
    "": RUNTIME | ROOT,
    "__main__": {"cli"},
}
"""Each may also import itself."""

MAY_DEFER = {"", "__main__", "app", "cli"}
"""Where an import may stand in a function, so that a command does not pay for what it does not use."""

CHOOSES = {"models.catalogue"}
"""Modules that choose one of several implementations: a process has only the one that it uses in memory."""

FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}


def modules() -> dict[str, Path]:
    """Every module by its name below the package: `store.sqlite.store`; the package itself is ``."""
    found = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE / PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def below(dotted: str) -> str | None:
    """The name below our package, or None if it is somebody else's."""
    if dotted == PACKAGE:
        return ""
    return dotted.removeprefix(f"{PACKAGE}.") if dotted.startswith(f"{PACKAGE}.") else None


def imported(tree: ast.AST) -> Iterator[str]:
    """Our modules that a tree imports. `from a import b` is module a.b if there is one, else a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            dotted = sorted(name if below(name) in MODULES else str(node.module) for name in full)
        else:
            continue
        yield from (name for name in map(below, dotted) if name is not None)


IMPORTS = {name: sorted(set(imported(tree)) - {name}) for name, tree in TREES.items()}


def folder(module: str) -> str:
    return module.split(".")[0]


def is_allowed(importer: str, target: str) -> bool:
    if folder(target) == folder(importer):
        return True
    allowed = MAY_IMPORT[folder(importer)]
    return folder(target) in allowed or target in allowed


def test_every_folder_has_a_row_in_the_table() -> None:
    assert {folder(module) for module in MODULES} - set(MAY_IMPORT) == set()


def test_imports_point_upwards_in_the_table_only() -> None:
    wrong = [
        f"{module} -> {target}" for module in MODULES for target in IMPORTS[module] if not is_allowed(module, target)
    ]
    assert wrong == []


def test_nothing_imports_the_package_itself() -> None:
    """`import holdfast` in the middle of the tree would reach the composition root."""
    names = {
        alias.name
        for module, tree in TREES.items()
        if folder(module) not in MAY_DEFER | ROOT
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE
        for alias in node.names
        if alias.name not in MODULES
    }
    assert names == set()


def test_server_and_workers_meet_in_the_store() -> None:
    assert "workers" not in MAY_IMPORT["server"]
    assert "server" not in MAY_IMPORT["workers"]


def test_the_ai_sdk_room_does_not_import_the_http_surface() -> None:
    room = [module for module in MODULES if module.startswith("server.ai_sdk")]
    assert [module for module in room if any(name.startswith("server.http") for name in IMPORTS[module])] == []


@pytest.mark.parametrize(
    "module", [module for module in MODULES if folder(module) not in MAY_DEFER and module not in CHOOSES]
)
def test_no_import_hides_in_a_function(module: str) -> None:
    hidden = [
        f"line {node.lineno}"
        for function in ast.walk(TREES[module])
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert hidden == []


def knots(graph: dict[str, list[str]]) -> list[list[str]]:
    """Modules that reach each other: Tarjan's strongly connected components with more than one member."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        path.append(module)
        for target in graph.get(module, []):
            if target not in order:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in path:
                low[module] = min(low[module], order[target])
        if low[module] == order[module]:
            at = path.index(module)
            if len(path) - at > 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for module in graph:
        if module not in order:
            visit(module)
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert knots(IMPORTS) == []


def test_a_circle_would_be_found() -> None:
    assert knots({"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": []}) == [["b", "c"]]


def test_every_module_is_named_for_what_it_defines() -> None:
    assert [module for module in MODULES if FORBIDDEN_NAMES & set(module.split("."))] == []


ONE_MEANING_IN_SEVERAL_MODULES = {
    "Conflict": "the client raises the refusal of the protocol, with a status",
    "Invalid": "the client raises the refusal of the protocol, with a status",
    "NotFound": "the client raises the refusal of the protocol, with a status",
    "Refused": "what was put was not accepted: a value of the store, and an error of the client",
    "Session": "one interface, in this process and on a server (`protocol/home.py`)",
}
"""Names of classes that several modules define, beside those that both stores have for the same part."""


def test_a_public_class_name_means_one_thing() -> None:
    definitions: dict[str, set[str]] = {}
    for module, tree in TREES.items():
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                part = module.replace("store.postgres.", "store.*.").replace("store.sqlite.", "store.*.")
                definitions.setdefault(node.name, set()).add(part)
    assert {name for name, parts in definitions.items() if len(parts) > 1} == set(ONE_MEANING_IN_SEVERAL_MODULES)
