"""The page's sources: their types, the tests of their pure parts, and that what is served was built of them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.sources import NODE, copied, run

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def folder(packages: Path) -> Iterator[Path]:
    with copied(packages) as folder:
        yield folder


async def test_the_page_that_is_served_is_built_of_its_sources(folder: Path) -> None:
    code, said = await run(NODE, "build.mjs", "--check", cwd=folder)
    assert code == 0, said


async def test_a_change_of_the_sources_that_was_not_built_is_noticed(folder: Path) -> None:
    """Beside the check above, which would else pass whatever it is given."""
    source = folder / "src" / "main.tsx"
    written = source.read_text(encoding="utf-8")
    source.write_text(f"{written}\nconsole.log('changed');\n", encoding="utf-8")
    try:
        code, said = await run(NODE, "build.mjs", "--check", cwd=folder)
    finally:
        source.write_text(written, encoding="utf-8")
    assert (code, "make page" in said) == (1, True), said


async def test_the_types_of_the_sources_are_right(folder: Path) -> None:
    code, said = await run(NODE, "node_modules/typescript/bin/tsc", "--noEmit", cwd=folder)
    assert code == 0, said


async def test_the_pure_parts_do_what_they_say(folder: Path) -> None:
    code, said = await run(NODE, "test/run.mjs", cwd=folder)
    assert code == 0, said
    assert re.search(r"\bpass [1-9]", said), said
    assert re.search(r"\bfail 0\b", said), said
