"""Objects in a directory or an S3 bucket: written whole, read in parts, listed by prefix, deleted.

All of it is obstore's, whose blocking calls run in the environment's threads. Each of them is a request or two, which
end by themselves (`Patience`); between them a call here can be cancelled, so deadlines are its caller's: around a put,
a get or a listing as a whole.

What can be relied on: an object appears whole or not at all. When `put` returns it is safe: S3 says so itself; in a
directory, where obstore writes a file beside it and renames that, without fsync, the file and the directories above it
are fsynced here. A power cut before that may leave a torn file under the name: readers need a checksum, and an object
that others refer to is not to be written again. Nothing else is relied on, neither the order of a listing nor
conditional writes, which servers that only resemble S3 lack.

Credentials, and the region, come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION ...) or
from the machine's own role, as obstore finds them; they are in no file and no text of ours.
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
from replicator.environment import Environment

T = TypeVar("T")

PART_BYTES = 8 * MIB  # of one request: S3 takes 5 MiB to 5 GiB, and 10,000 of them, so 80 GiB an object
READ_BYTES = MIB  # at least, of a part that is read: going to a thread for less would cost more than reading it
PARTS_AT_ONCE = 2  # of one upload, so 24 MiB of memory with the one that fills up
NAMES_AT_ONCE = 1000  # of one answer to a listing, and of one request to delete: S3's own limit
ROLES_HOST = "169.254.169.254"  # asked for the machine's role where the environment has no keys
REASON_CHARS = 300  # of what obstore says of an error: answers of servers are in it


class ObjectStoreError(Exception):
    """The object store did not do what it was asked. The text says what, where, and what to do."""


class ObjectMissingError(ObjectStoreError):
    """There is no such object, or, in S3, no such bucket."""


class Patience(NamedTuple):
    """With a server. What fails by 5xx, a broken connection or a timeout is tried again, ever more slowly."""

    connect_s: float = 5.0
    silence_s: float = 30.0  # while an answer is awaited or read; so long may 8 MiB take on their way to the server
    request_s: float = 300.0  # with all of the answer; one that was read so far is gone on with
    retries: int = 4
    retry_s: float = 60.0  # no further try after that


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Around what is done with an object store. Raises ObjectStoreError if it takes longer."""
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError:
        text = f"the object store has not answered in {seconds:.0f} s; is the way to `checkpoint.url` fast enough?"
        raise ObjectStoreError(text) from None


class ObjectInfo(NamedTuple):
    """What a listing says of an object."""

    name: str
    size_bytes: int


class ObjectStore:
    """The objects under `url`: `file:///absolute/directory`, made when it is needed, or `s3://bucket/prefix`.

    `endpoint`: of a server that resembles S3, `https://host:port` or, without TLS, `http://host:port`; None for Amazon.
    Names are of levels parted by slashes, none of which is empty, "." or "..". Whether the store can be
    reached shows at the first use.
    """

    def __init__(
        self,
        url: str,
        environment: Environment,
        endpoint: str | None = None,
        patience: Patience | None = None,
        settings: str = "`checkpoint.url` and `checkpoint.endpoint`",
    ) -> None:
        self._url = url.rstrip("/")
        self._environment = environment
        is_local = urlsplit(url).scheme == "file"
        self._directory = Path(unquote(urlsplit(url).path)) if is_local else None
        self._endpoint, self._patience, self._settings = endpoint, patience or Patience(), settings
        self._opened: LocalStore | S3Store | None = None

    async def put(self, name: str, data: Iterable[bytes]) -> None:
        """Write an object, in place of one that has the name. `data` is iterated over in threads, one at a time.

        If `data` raises, or the call is cancelled before the end, there is no such object. Of an upload in parts S3
        then keeps what came, out of sight, until the bucket's lifecycle rule for those ends it. Raises
        ObjectStoreError.
        """
        pieces = iter(data)

        def begin(store: LocalStore | S3Store) -> obstore.WritableFile:
            return obstore.open_writer(store, name, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

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
        """An object's bytes, as of one moment, in parts; close it (`contextlib.aclosing`) if that is not at its end.

        Raises ObjectMissingError, ObjectStoreError.
        """

        # One request: of ranges some servers answer with a status that is not that of a range.
        def begin(store: LocalStore | S3Store) -> obstore.BytesStream:
            return obstore.get(store, name).stream(min_chunk_size=READ_BYTES)

        stream = await self._run("read", name, begin)
        while (part := await self._run("read", name, lambda _: next(stream, None))) is not None:
            yield bytes(part)

    async def exists(self, name: str) -> bool:
        """Whether there is such an object. Raises ObjectStoreError."""
        try:
            await self._run("find", name, partial(obstore.head, path=name))
        except ObjectMissingError:
            return False
        return True

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """All objects whose names begin with these levels, in no order; close it as `get`. Raises ObjectStoreError."""
        begin = partial(obstore.list, prefix=prefix or None, chunk_size=NAMES_AT_ONCE)
        listing = await self._run("list", prefix, begin)
        while found := await self._run("list", prefix, lambda _: next(listing, None)):
            for meta in found:
                yield ObjectInfo(meta["path"], meta["size"])

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; one that is not there is deleted already. Raises ObjectStoreError."""
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = names[start : start + NAMES_AT_ONCE]
            await self._run("delete", some[0], partial(_delete, names=some))

    async def _run(self, verb: str, name: str, work: Callable[[LocalStore | S3Store], T]) -> T:
        """In a thread, with all errors translated. Those that `put` is handed with its data are not ours.

        Nobody who is cancelled waits for a directory that hangs, unless something is being written to it.
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
            self._directory.mkdir(parents=True, exist_ok=True)
            _sync(*(level.parent for level in new))
            return LocalStore(self._directory, automatic_cleanup=True)
        return _s3_store(self._url, self._endpoint, self._patience)

    def _translated(self, verb: str, name: str, error: Exception) -> ObjectStoreError:
        reason = str(error).partition("\n\nDebug source:")[0]
        where = f"{self._url}/{name}: cannot {verb} it: {' '.join(reason.split())[:REASON_CHARS]}"
        if isinstance(error, FileNotFoundError) or "NoSuchBucket" in reason:
            return ObjectMissingError(f"{where}; does it exist, and the bucket or directory that it is to be in?")
        if self._directory is not None:
            return ObjectStoreError(f"{where}; is there room, and may the directory be written to?")
        if ROLES_HOST in reason:
            return ObjectStoreError(
                f"{self._url}: there are no keys for it: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION in"
                " the node's environment, or give this machine a role that may use the bucket"
            )
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or "403 Forbidden" in reason:
            return ObjectStoreError(
                f"{where}; look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy"
            )
        return ObjectStoreError(f"{where}; is the server up, and are {self._settings} right?")


class _DataError(Exception):
    """What the data of a `put` raised, on its way past the translation of errors."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


def _sync(*paths: Path) -> None:
    """Make files, or what directories list, survive a power cut."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_part(writer: obstore.WritableFile, pieces: Iterator[bytes]) -> bool:
    """Write about a part. False where there is no more."""
    room = PART_BYTES
    while room > 0:
        try:
            piece = next(pieces, None)
        except (BaseError, OSError, ValueError) as error:  # those that would be taken for the store's
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


def _s3_store(url: str, endpoint: str | None, patience: Patience) -> S3Store:
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
