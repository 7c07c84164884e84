"""Objects in a directory or an S3 bucket: written whole, read in parts, listed by prefix, deleted.

The work is done by obstore, whose blocking calls run in the environment's threads. Each of these calls makes one or two
requests, which end by themselves (`RetryPolicy`). A call here can be cancelled between them, so the caller sets the
deadline around a whole put, get or listing.

Guarantees: an object appears whole or not at all. When `put` returns, the object is durable. S3 guarantees that itself;
in a directory, obstore writes a temporary file beside the object and renames it without fsync, so this module fsyncs
the file and the directories above it. A power cut before that may leave a torn file under the name: readers need a
checksum, and an object that others refer to must not be written again. Nothing else is relied on, neither the order of
a listing nor conditional writes, which some servers compatible with S3 lack.

Credentials and the region come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION ...) or from
the machine's role, as obstore finds them; this project keeps them in no file and no text.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
import trio
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, S3Store

from protocol.units import MIB
from replicator.runtime.environment import Environment
from replicator.runtime.files.file_modes import PRIVATE_DIRECTORY

T = TypeVar("T")

PART_BYTES = 8 * MIB  # of one request: S3 takes 5 MiB to 5 GiB, and 10,000 of them, so 80 GiB an object
READ_BYTES = MIB  # minimum of one read: switching to a thread for less would cost more than the read
ATTACHMENTS_AT_ONCE = 2  # of one upload: 24 MiB of memory, with the part being filled
NAMES_AT_ONCE = 1000  # in one answer to a listing and in one request to delete: S3's own limit
ROLES_HOST = "169.254.169.254"  # asked for the machine's role if the environment has no keys
REASON_CHARS = 300  # of obstore's error text, which includes servers' answers


class ObjectStoreError(Exception):
    """The object store failed a request. The text says what failed, where, and what to do."""


class ObjectMissingError(ObjectStoreError):
    """The object does not exist or, in S3, the bucket does not."""


class RetryPolicy(NamedTuple):
    """Timeouts and retries for a server: 5xx, a broken connection or a timeout is retried at growing intervals."""

    connect_s: float = 5.0
    silence_s: float = 30.0  # while an answer is awaited or read; 8 MiB may take as long to reach the server
    request_s: float = 300.0  # with the whole answer; a partly read answer is resumed
    retries: int = 4
    retry_s: float = 60.0  # no further retry after that


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit the time of the work with an object store in this block. Raises ObjectStoreError if it takes longer."""
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError:
        text = (
            f"the object store did not answer within {seconds:.0f} s; is the connection to `checkpoint.url` fast"
            " enough?"
        )
        raise ObjectStoreError(text) from None


class ObjectInfo(NamedTuple):
    """Name and size of an object in a listing."""

    name: str
    size_bytes: int


class ObjectStore:
    """The objects under `url`: `file:///absolute/directory`, created when needed, or `s3://bucket/prefix`.

    `endpoint` is the URL of a server compatible with S3, `https://host:port` or, without TLS, `http://host:port`; None
    means Amazon. Object names consist of levels separated by slashes; no level is empty, "." or "..". The first
    operation shows whether the store can be reached.
    """

    def __init__(
        self,
        url: str,
        environment: Environment,
        endpoint: str | None = None,
        patience: RetryPolicy | None = None,
        settings: str = "`checkpoint.url` and `checkpoint.endpoint`",
    ) -> None:
        self._url = url.rstrip("/")
        self._environment = environment
        is_local = urlsplit(url).scheme == "file"
        self._directory = Path(unquote(urlsplit(url).path)) if is_local else None
        self._endpoint, self._patience, self._settings = endpoint, patience or RetryPolicy(), settings
        self._opened: LocalStore | S3Store | None = None

    async def put(self, name: str, data: Iterable[bytes]) -> None:
        """Write an object, replacing one of that name. `data` is iterated over in threads, one at a time.

        If `data` raises, or the call is cancelled before the end, no object is created. S3 then keeps the parts of an
        unfinished upload, unlisted, until the bucket's lifecycle rule for such parts removes them. Raises
        ObjectStoreError.
        """
        pieces = iter(data)

        def begin(store: LocalStore | S3Store) -> obstore.WritableFile:
            return obstore.open_writer(store, name, buffer_size=PART_BYTES, max_concurrency=ATTACHMENTS_AT_ONCE)

        writer = await self._run("write", name, begin)
        while await self._run("write", name, lambda _: _write_part(writer, pieces)):
            pass

        def finish(_: LocalStore | S3Store) -> None:
            writer.close()
            if self._directory is not None:
                path = self._directory / name
                _sync(path, *(level for level in path.parents if level.is_relative_to(self._directory)))

        await self._run("write", name, finish)

    async def get(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield an object's bytes in parts, all of one version; close early with `contextlib.aclosing`.

        Raises ObjectMissingError, ObjectStoreError.
        """

        # One request, because some servers answer range requests with the wrong status.
        def begin(store: LocalStore | S3Store) -> obstore.BytesStream:
            return obstore.get(store, name).stream(min_chunk_size=READ_BYTES)

        stream = await self._run("read", name, begin)
        while (part := await self._run("read", name, lambda _: next(stream, None))) is not None:
            yield bytes(part)

    async def exists(self, name: str) -> bool:
        """Return True if the object exists. Raises ObjectStoreError."""
        try:
            await self._run("find", name, partial(obstore.head, path=name))
        except ObjectMissingError:
            return False
        return True

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield all objects under these levels, in no order; close early as with `get`. Raises ObjectStoreError."""
        begin = partial(obstore.list, prefix=prefix or None, chunk_size=NAMES_AT_ONCE)
        listing = await self._run("list", prefix, begin)
        while found := await self._run("list", prefix, lambda _: next(listing, None)):
            for meta in found:
                yield ObjectInfo(meta["path"], meta["size"])

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; a missing one counts as deleted. Raises ObjectStoreError."""
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = names[start : start + NAMES_AT_ONCE]
            await self._run("delete", some[0], partial(_delete, names=some))

    async def _run(self, verb: str, name: str, work: Callable[[LocalStore | S3Store], T]) -> T:
        """Run `work` in a thread and translate its errors, except those raised by the data given to `put`.

        A cancelled read does not wait for a directory that hangs; a cancelled write does.
        """

        def attempt() -> T:
            try:
                self._opened = self._opened or self._open()
                return work(self._opened)
            except _DataError as error:
                raise error.cause from None
            except (BaseError, OSError, ValueError) as error:
                raise self._translated(verb, name, error) from error

        is_reading = verb in {"read", "find", "list"}
        run = self._environment.run_until_cancelled if is_reading else self._environment.run_in_thread
        return await run(attempt)

    def _open(self) -> LocalStore | S3Store:
        if self._directory is not None:
            new = [level for level in (self._directory, *self._directory.parents) if not level.exists()]
            self._directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            _sync(*(level.parent for level in new))
            return LocalStore(self._directory, automatic_cleanup=True)
        return _s3_store(self._url, self._endpoint, self._patience)

    def _translated(self, verb: str, name: str, error: Exception) -> ObjectStoreError:
        reason = str(error).partition("\n\nDebug source:")[0]
        where = f"{self._url}/{name}: cannot {verb} it: {' '.join(reason.split())[:REASON_CHARS]}"
        if isinstance(error, FileNotFoundError) or "NoSuchBucket" in reason:
            return ObjectMissingError(f"{where}; do the object and its bucket or directory exist?")
        if self._directory is not None:
            return ObjectStoreError(f"{where}; is there room, and may the node write to the directory?")
        if ROLES_HOST in reason:
            return ObjectStoreError(
                f"{self._url}: no credentials: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION in"
                " the node's environment, or give this machine a role that may use the bucket"
            )
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or "403 Forbidden" in reason:
            return ObjectStoreError(f"{where}; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy")
        return ObjectStoreError(f"{where}; is the server up, and are {self._settings} right?")


class _DataError(Exception):
    """Carrier of an exception raised by the data of a `put`, past the translation of errors."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


def _sync(*paths: Path) -> None:
    """Fsync files, or the entries of directories, so that they survive a power cut."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_part(writer: obstore.WritableFile, pieces: Iterator[bytes]) -> bool:
    """Write about one part. Return False at the end of the data."""
    room = PART_BYTES
    while room > 0:
        try:
            piece = next(pieces, None)
        except (BaseError, OSError, ValueError) as error:  # the types that would be taken for the store's errors
            raise _DataError(error) from error
        if piece is None:
            return False
        writer.write(piece)
        room -= len(piece)
    return True


def _delete(store: LocalStore | S3Store, names: Sequence[str]) -> None:
    if isinstance(store, S3Store):
        obstore.delete(store, names)
        return
    for name in names:
        try:
            obstore.delete(store, name)
        except FileNotFoundError:
            continue


def _s3_store(url: str, endpoint: str | None, patience: RetryPolicy) -> S3Store:
    client: obstore.store.ClientConfig = {
        "connect_timeout": timedelta(seconds=patience.connect_s),
        "read_timeout": timedelta(seconds=patience.silence_s),
        "timeout": timedelta(seconds=patience.request_s),
    }
    if endpoint is not None and endpoint.startswith("http:"):
        client["allow_http"] = True
    return S3Store(
        urlsplit(url).netloc,
        prefix=urlsplit(url).path.strip("/") or None,
        config={"endpoint": endpoint} if endpoint is not None else None,
        client_options=client,
        retry_config={"max_retries": patience.retries, "retry_timeout": timedelta(seconds=patience.retry_s)},
    )
