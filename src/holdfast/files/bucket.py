"""The file store in a bucket of S3, Google Cloud Storage or Azure, by URL. Credentials come from the environment, under
the names of each provider's own tools."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, BinaryIO, Final

from obstore import exceptions, store

from holdfast.files.errors import FilesUnavailable
from holdfast.files.objects import HOME, READ_BYTES, path_of

REQUEST_SECONDS: Final = 3600
"""For one request, its body included: a slow reader of a large file holds one open."""

RETRY_SECONDS: Final = 30
"""A request that fails is repeated for so long. A person waits for it."""

PARTS_AT_ONCE: Final = 4
"""Parts of a large object that are sent at once: each is in memory."""


class Bucket:
    """An object is stored in parts, and visible only when all of them are."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._store: Any = store.from_url(
                url,
                client_options={
                    "timeout": timedelta(seconds=REQUEST_SECONDS),
                    "connect_timeout": timedelta(seconds=10),
                    "allow_http": True,  # For an endpoint that the operator names; the providers' own are https.
                },
                retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            )
        except (exceptions.BaseError, ValueError) as error:
            raise self._unavailable(error) from error

    @property
    def place(self) -> str:
        return self._url

    async def store(self, name: str, source: BinaryIO) -> None:
        source.seek(0)
        try:
            await self._store.put_async(path_of(name), source, max_concurrency=PARTS_AT_ONCE)
        except (exceptions.BaseError, OSError) as error:
            raise self._unavailable(error) from error

    async def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        if start >= end:
            return
        try:
            found = await self._store.get_async(path_of(name), options={"range": (start, end)})
            async for data in found.stream(min_chunk_size=READ_BYTES):
                yield bytes(data)
        except (exceptions.BaseError, OSError) as error:
            raise self._unavailable(error) from error

    async def remove(self, name: str) -> None:
        try:
            await self._store.delete_async(path_of(name))
        except (FileNotFoundError, exceptions.NotFoundError):
            pass  # Some providers say that there is none; it was never stored, or is removed already.
        except (exceptions.BaseError, OSError) as error:
            raise self._unavailable(error) from error

    async def home(self, name: str) -> str:
        try:
            try:
                await self._store.put_async(HOME, name.encode(), mode="create")
            except exceptions.AlreadyExistsError:
                pass
            found = await self._store.get_async(HOME)
            return bytes(await found.bytes_async()).decode()
        except (exceptions.BaseError, OSError, UnicodeError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> FilesUnavailable:
        first = str(error).partition("\n")[0]
        return FilesUnavailable(f"The files at {self._url} can't be reached: {type(error).__name__}: {first}")
