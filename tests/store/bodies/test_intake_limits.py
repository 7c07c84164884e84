from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from protocol.units import KIB, MIB
from replicator.store.bodies.attachment_ranges import CHUNK_BYTES
from replicator.store.bodies.body_writer import BodyWriter
from replicator.store.bodies.recipe import INLINE_TOTAL_MAX
from tests.effort import spread
from tests.store.bodies.memory_attachments import MemoryAttachments
from tests.store.bodies.taking_in import HEAD, TAIL, base64_lines, take_in


def test_failed_intake_holds_no_attachments() -> None:
    part = b"\r\n--b\r\nContent-Transfer-Encoding: base64\r\n\r\n" + base64_lines(bytes(3000)) + b"\r\n!" + bytes(2000)
    body = HEAD + b"first" * 500 + part * 2 + b"\r\n--b\r\n" + b"a: b\r\n" * (INLINE_TOTAL_MAX // 6) + TAIL
    for steps in range(1000):
        store = MemoryAttachments(fails_at=steps)
        intake = BodyWriter(store, 1000)
        try:
            for at in range(0, len(body), 100_000):
                intake.write(body[at : at + 100_000])
            intake.finish()
        except OSError:
            assert (store.held, store.contents, store.open) == ({}, {}, 0)
            continue
        break
    else:
        pytest.fail("every attempt failed")
    assert steps > 20
    assert (store.builds, len(store.held)) == (6, 4)


def test_abandoned_intake_holds_no_attachments() -> None:
    body = HEAD + bytes(3000) + b"\r\n--b\r\n\r\n" + bytes(4000)
    store = MemoryAttachments()
    intake = BodyWriter(store, 1000)
    intake.write(body)
    assert (len(store.held), store.open) == (1, 1)
    intake.abandon()
    intake.abandon()
    assert (store.held, store.open) == ({}, 0)
    taken = take_in(store, [body], 1000)
    assert len(store.held) == len(taken.holdings) == 2


def shape(name: str, size: int) -> Iterator[bytes]:
    head, unit = {
        "base64": (HEAD, base64_lines(bytes(57 * 1000)) + b"\r\n"),
        "single line": (HEAD, b"AAAA" * 25_000),
        "binary": (HEAD, bytes(range(256)) * 400),
        "line feeds": (HEAD, b"\n" * 100_000),
        "almost delimiters": (HEAD + b"x", b"\n--" * 30_000),
        "header": (b"", b"a: b\r\n" * 10_000),
        "long field": (b"a: ", b"b" * 100_000),
        "preamble": (HEAD[: HEAD.index(b"--b")], b"text\r\n" * 10_000),
        "parts": (HEAD, b"\r\n--b\r\n\r\n" + b"a" * 1000),
        "large parts": (HEAD, b"\r\n--b\r\n\r\n" + b"a" * 70_000),
        "delimiters": (HEAD, b"--b\n" * 25_000),
        "blanks": (HEAD + b"\n--b", b" " * 100_000),
        "nested": (b"", b"Content-Type: message/rfc822\r\n\r\n"),
    }[name]
    unit *= 1 + 100_000 // len(unit)
    yield head
    for _ in range(size // len(unit)):
        yield unit


SHAPES = ["base64", "single line", "binary", "line feeds", "almost delimiters", "header", "long field", "preamble"]
SHAPES += ["parts", "large parts", "delimiters", "blanks", "nested"]


@pytest.mark.parametrize("name", spread(6, SHAPES))
def test_memory_does_not_grow_with_the_body(name: str) -> None:
    store = MemoryAttachments(keeps=False)
    intake = BodyWriter(store, 64 * KIB)
    tracemalloc.start()
    try:
        for piece in shape(name, 30 * MIB):
            intake.write(piece)
        taken = intake.finish()
        assert tracemalloc.get_traced_memory()[1] < 4 * INLINE_TOTAL_MAX + 10 * CHUNK_BYTES
    finally:
        tracemalloc.stop()
    assert taken.size_bytes > 29 * MIB
