"""Calls of the object store when the server, or the line to it, fails."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from uuid import uuid4

import pytest
from obstore.exceptions import GenericError

from benchmarks.clients.wire import Address
from benchmarks.clusters.proxy import Proxy
from replicator.runtime.environment import Environment
from replicator.runtime.objects import PART_BYTES, ObjectMissingError, ObjectStore, ObjectStoreError, RetryPolicy
from tests.objects.contents import names, read
from tests.objects.faulty_line import UNAVAILABLE, Fault, faulty_line
from tests.objects.s3_server import BUCKET, SECRET, needs_rclone

pytestmark = needs_rclone

IMPATIENT = RetryPolicy(connect_s=1.0, silence_s=0.5, retries=1, retry_s=5.0)
NO_RETRIES = RetryPolicy(retries=0)
PREFIX = str(uuid4())


def open_store(endpoint: str, patience: RetryPolicy | None = None, bucket: str = BUCKET) -> ObjectStore:
    return ObjectStore(f"s3://{bucket}/{PREFIX}", Environment(), endpoint, patience)


@pytest.fixture
def direct(server: Address) -> ObjectStore:
    return open_store(f"http://{server.host}:{server.port}")


async def put_small(store: ObjectStore) -> None:
    await store.put("small", [b"x"])


async def put_large(store: ObjectStore) -> None:
    await store.put("large", (bytes(1 << 20) for _ in range(3 * PART_BYTES >> 20)))


async def read_small(store: ObjectStore) -> None:
    await read(store, "a")


async def list_all(store: ObjectStore) -> None:
    await names(store)


async def delete_one(store: ObjectStore) -> None:
    await store.delete(["a"])


CALLS = pytest.mark.parametrize("call", [put_small, put_large, read_small, list_all, delete_one])
Call = Callable[[ObjectStore], Awaitable[None]]


@CALLS
async def test_call_to_a_busy_server_is_retried(server: Address, direct: ObjectStore, call: Call) -> None:
    await direct.put("a", [b"x"])
    with faulty_line(server, *[Fault(answer=UNAVAILABLE)] * 2) as line:
        await call(open_store(line.endpoint))
        assert line.connections > 2


@CALLS
async def test_server_that_stays_busy_is_named(server: Address, call: Call) -> None:
    with faulty_line(server, *[Fault(answer=UNAVAILABLE)] * 9) as line:
        with pytest.raises(ObjectStoreError, match=rf"^s3://{BUCKET}/.*503.*is the server up"):
            await call(open_store(line.endpoint, IMPATIENT))
        assert line.connections == 2


@pytest.fixture
def silent_line(server: Address) -> Iterator[str]:
    with Proxy(server) as proxy:
        proxy.hold()
        yield f"http://127.0.0.1:{proxy.port}"
        proxy.mend()


@pytest.fixture
def slow_line(server: Address) -> Iterator[str]:
    with Proxy(server) as proxy:
        proxy.throttle(4e6)
        yield f"http://127.0.0.1:{proxy.port}"


@CALLS
async def test_silent_server_is_given_up(silent_line: str, call: Call) -> None:
    with pytest.raises(ObjectStoreError, match="is the server up"):
        await call(open_store(silent_line, IMPATIENT))


@CALLS
async def test_missing_server_is_an_error(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ObjectStoreError, match="is the server up"):
        await call(open_store(f"http://127.0.0.1:{port}", IMPATIENT))


async def test_a_slow_line_is_no_error(slow_line: str) -> None:
    data = os.urandom(1 << 20)
    store = open_store(slow_line)
    await store.put("slow", [data])
    assert await read(store, "slow") == data


@pytest.mark.parametrize("forth_bytes", [300, 100_000, PART_BYTES + 100_000])
async def test_interrupted_upload_leaves_no_object(server: Address, direct: ObjectStore, forth_bytes: int) -> None:
    with faulty_line(server, *[Fault(forth_bytes=forth_bytes)] * 9) as line:
        with pytest.raises(ObjectStoreError, match="cannot write it"):
            await open_store(line.endpoint, NO_RETRIES).put("broken off", [bytes(PART_BYTES)] * 3)
        assert line.connections
    assert "broken off" not in await names(direct)


async def test_interrupted_upload_is_continued(server: Address, direct: ObjectStore) -> None:
    data = os.urandom(2 * PART_BYTES + 5)
    with faulty_line(server, Fault(forth_bytes=100_000), Fault(forth_bytes=200_000)) as line:
        await open_store(line.endpoint).put("whole", [data])
        assert line.connections > 2
    assert await read(direct, "whole") == data


@pytest.mark.parametrize("back_bytes", [100, 100_000, 3_000_000])
async def test_truncated_answer_is_never_taken_for_complete(
    server: Address, direct: ObjectStore, back_bytes: int
) -> None:
    await direct.put("large", [os.urandom(4_000_000)])
    with faulty_line(server, *[Fault(back_bytes=back_bytes)] * 9) as line:
        with pytest.raises(ObjectStoreError, match="cannot read it"):
            await read(open_store(line.endpoint, NO_RETRIES), "large")
        assert line.connections


async def test_missing_bucket_is_reported(server: Address) -> None:
    store = open_store(f"http://{server.host}:{server.port}", bucket="nowhere")
    with pytest.raises(ObjectMissingError, match="do the object and its bucket or directory exist"):
        await put_small(store)
    with pytest.raises(ObjectMissingError, match="NoSuchBucket"):
        await list_all(store)


def test_missing_credentials_are_reported() -> None:
    asked_for_a_role = GenericError("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token")
    error = open_store("http://127.0.0.1:1")._translated("read", "a", asked_for_a_role)
    assert "no credentials: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION" in str(error)
    assert "169.254" not in str(error)


@CALLS
async def test_wrong_credentials_are_reported_but_not_shown(
    server: Address, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-right-one")
    with pytest.raises(ObjectStoreError, match="check AWS_ACCESS_KEY_ID") as caught:
        await call(open_store(f"http://{server.host}:{server.port}"))
    assert "not-the-right-one" not in str(caught.value)
    assert SECRET not in str(caught.value).partition("; check AWS")[0].replace("AWS_SECRET", "")
