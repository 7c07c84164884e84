from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import Dot
from replicator.store.checkpoints.checkpoint import Home, date, ms_of
from replicator.store.checkpoints.container import ContainerKind, UnreadableError, seal
from replicator.store.checkpoints.manifest import (
    DATE_MAX_MS,
    HEADS_AT_ONCE,
    Manifest,
    ManifestReader,
    made_ms,
    manifests_of,
    newest_first,
    write_manifest,
)
from replicator.store.db.entry_validation import NamedHead
from resync.entry import tree_id

HOME = Home("mail", "dc1")
MANIFEST = Manifest(HOME, 1_795_228_205_123, (Dot("dc1.x", 9), Dot("dc2.y", 3)))
HEAD = NamedHead("alice", b"m" * 16, 7, Dot("dc1.x", 9), 5, 100 << 16)


def read(name: str, *pieces: bytes) -> tuple[Manifest, list[NamedHead]]:
    reader = ManifestReader(name)
    heads = [head for piece in pieces for head in reader.receive(piece)]
    return reader.finish(), heads


def some_heads(count: int) -> list[NamedHead]:
    return [HEAD._replace(mailbox_id=number.to_bytes(16), modseq=number) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [0, 1, HEADS_AT_ONCE, 3 * HEADS_AT_ONCE + 1])
def test_manifest_is_read_back_unchanged(count: int) -> None:
    heads = some_heads(count)
    assert read(MANIFEST.name, *write_manifest(MANIFEST, heads)) == (MANIFEST, heads)


def test_manifest_lists_trees_and_mailboxes_of_several_users() -> None:
    heads = [HEAD, HEAD._replace(user="bob", uidvalidity=0, mailbox_id=tree_id("bob"))]
    heads.sort(key=lambda head: head.mailbox_id)
    assert read(MANIFEST.name, *write_manifest(MANIFEST, heads)) == (MANIFEST, heads)


def test_damaged_manifest_is_refused() -> None:
    good = b"".join(write_manifest(MANIFEST, some_heads(9)))
    for at in range(len(good)):
        for bad in (good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :], good[:at]):
            with pytest.raises(UnreadableError, match=rf"^{MANIFEST.name}: "):
                read(MANIFEST.name, bad)


FIRST = (MANIFEST.home, MANIFEST.made_ms, MANIFEST.context)


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        ([], "it is empty"),
        ([b"\xc1"], "not MessagePack"),
        ([(HOME, 5)], "not an array of 3 fields"),
        ([(5, MANIFEST.made_ms, ())], "which node wrote it"),
        ([(HOME, "now", ())], "which node wrote it"),
        ([(HOME, -1, ())], "which node wrote it"),
        ([(HOME, DATE_MAX_MS, ())], "which node wrote it"),
        ([(HOME, MANIFEST.made_ms, (("dc1.x", 0),))], "its context is malformed"),
        ([(("other", "dc1"), MANIFEST.made_ms, ())], "contrary to its name"),
        ([(("mail", "dc2"), MANIFEST.made_ms, ())], "contrary to its name"),
        ([(HOME, MANIFEST.made_ms - 1, ())], "contrary to its name"),
        ([FIRST, 5], "not an array of any number of fields"),
        ([FIRST, (5,)], "types"),
        ([FIRST, (HEAD._replace(time=0),)], "time out of range"),
        ([FIRST, (HEAD, HEAD)], "not in order"),
        ([FIRST, (HEAD,), (HEAD._replace(mailbox_id=b"a" * 16),)], "not in order"),
    ],
)
def test_invalid_manifest_is_refused(frames: list[object], problem: str) -> None:
    packed = (frame if isinstance(frame, bytes) else msgpack.packb(frame) for frame in frames)
    with pytest.raises(UnreadableError, match=f"damaged: .*{problem}"):
        read(MANIFEST.name, *seal(ContainerKind.MANIFEST, packed))


def test_manifest_name_has_node_and_time() -> None:
    assert MANIFEST.name == "mail/manifests/dc1/20261121T023005.123Z.manifest"
    assert MANIFEST.name.startswith(manifests_of("mail", "dc1") + "/")
    assert MANIFEST.name.startswith(manifests_of("mail") + "/")


@given(st.integers(0, DATE_MAX_MS - 1))
def test_dates_in_names_are_exact(ms: int) -> None:
    assert ms_of(date(ms)) == ms


@given(st.permutations([1, 2, 3, 1_000_000, 1_795_228_205_123, DATE_MAX_MS - 1]))
def test_manifests_of_all_nodes_are_sorted_newest_first(times: list[int]) -> None:
    names = [Manifest(Home("mail", f"dc{ms % 3}"), ms, ()).name for ms in times]
    assert [made_ms(name) for name in newest_first(names)] == sorted(times, reverse=True)


@pytest.mark.parametrize(
    "name", ["", "mail/manifests/dc1/README", "mail/manifests/dc1/20269921T023005.123Z.manifest", MANIFEST.name + "#1"]
)
def test_other_objects_are_not_taken_for_manifests(name: str) -> None:
    assert made_ms(name) is None
    assert newest_first([name, MANIFEST.name]) == [MANIFEST.name]
