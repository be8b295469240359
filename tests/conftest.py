"""What every test stands on: asyncio, and an environment in which nobody's own settings, keys or data are seen."""

import os
from collections.abc import Iterator

import pytest

# Failures of the conformance suite are explained as those of any test; to be said before anything imports it.
pytest.register_assert_rewrite("holdfast.testing.store_conformance")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _plain_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Subprocesses inherit it too."""
    with pytest.MonkeyPatch.context() as environment:
        for name in list(os.environ):
            if name.startswith("HOLDFAST_") or name.endswith(("_API_KEY", "_API_TOKEN")):
                environment.delenv(name)
        environment.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield
