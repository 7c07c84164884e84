"""Properties of annotations that the dialogues cannot show: octets, limits, and other nodes."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from replicator.config import LimitsConfig
from replicator.imap.services import ImapServices
from replicator.runtime.metrics import RefusalMetrics
from replicator.store.log.sequencing.folder_sequencer import REMOVED_FACTOR
from tests.imap.client import connected, services
from tests.one_node import one_node


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"{3+}\r\na\r\n", b"{3}\r\na\r\n"),
        (b"~{3+}\r\n\x00\xff\n", b"~{3}\r\n\x00\xff\n"),
        (b"{2+}\r\n\xc3\xa4", b"{2}\r\n\xc3\xa4"),
        (b'"NIL"', b'"NIL"'),
    ],
)
async def test_values_are_any_octets(served: ImapServices, sent: bytes, shown: bytes) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(b"a SETMETADATA INBOX (/private/comment " + sent + b")\r\n")
        assert await client.until("a") == ["a OK Annotations set"]
        await client.send("t GETMETADATA INBOX /private/comment\r\n")
        assert await client.octets() == b'* METADATA "INBOX" (/private/comment ' + shown + b")\r\n"


async def test_too_large_values_are_refused_and_counted(served: ImapServices) -> None:
    registry = CollectorRegistry()
    limits = LimitsConfig(imap_annotation_bytes=1024)
    served = replace(served, limits=limits, refusals=RefusalMetrics(registry))
    async with connected(served) as client:
        await client.log_in("alice")
        for size in (1025, 64 << 10, (64 << 10) + 1, 1 << 20):
            await client.send(b"a SETMETADATA INBOX (/shared/a NIL /private/b {%d+}\r\n%b)\r\n" % (size, b"x" * size))
            [answer] = await client.until("a")
            assert answer == "a NO [METADATA MAXSIZE 1024] The value of an annotation may have 1024 bytes"
        await client.send(b"a SETMETADATA INBOX (/shared/a {70000}\r\n")  # its client waits, and need not send it
        assert (await client.until("a"))[-1].startswith("a NO [METADATA MAXSIZE 1024] ")
        await client.send(b"a SETMETADATA INBOX (/private/b {1024+}\r\n%b)\r\n" % (b"x" * 1024))
        assert await client.until("a") == ["a OK Annotations set"]
    labels = {"door": "imap", "limit": "imap_annotation_bytes"}
    assert registry.get_sample_value("replicator_refusals_total", labels) == 5


async def test_too_many_annotations_are_refused_and_counted(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    limits = LimitsConfig(imap_annotations_per_folder=10, imap_annotations_per_user=15)
    async with one_node(tmp_path, limits=limits) as mail:
        served = replace(services(mail), limits=limits, refusals=RefusalMetrics(registry))
        async with connected(served) as client:
            await client.log_in("alice")
            ten = " ".join(f'/private/{number} "x"' for number in range(10))
            assert await client.run(f'SETMETADATA "" ({ten})') == ["t OK Annotations set"]
            for values in ('/private/more "x"', f'{ten} /private/more "x"'):
                [answer] = await client.run(f'SETMETADATA "" ({values})')
                assert answer.startswith("t NO [METADATA TOOMANY] ")
            for number in range(5):
                assert (await client.run(f'SETMETADATA INBOX (/private/{number} "x")'))[-1].startswith("t OK")
            [answer] = await client.run('SETMETADATA INBOX (/private/5 "x")')
            assert answer == "t NO [METADATA TOOMANY] a user may have 15 annotations; remove some first"
            assert await client.run('SETMETADATA "" (/private/0 "y" /private/1 NIL)') == ["t OK Annotations set"]
            assert await client.run('SETMETADATA INBOX (/private/5 "x")') == ["t OK Annotations set"]
    counted = {
        limit: registry.get_sample_value("replicator_refusals_total", {"door": "imap", "limit": limit})
        for limit in ("imap_annotations_per_folder", "imap_annotations_per_user")
    }
    assert counted == {"imap_annotations_per_folder": 2, "imap_annotations_per_user": 1}


async def test_annotations_that_a_new_folder_brings_are_counted_by_their_limit(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    limits = LimitsConfig(imap_annotations_per_folder=10, imap_annotations_per_user=10, imap_folders_per_user=3)

    def counted() -> dict[str, float | None]:
        keys = ("imap_folders_per_user", "imap_annotations_per_folder", "imap_annotations_per_user")
        labels = [{"door": "imap", "limit": key} for key in keys]
        return {one["limit"]: registry.get_sample_value("replicator_refusals_total", one) or 0 for one in labels}

    async with one_node(tmp_path, limits=limits) as mail:
        served = replace(services(mail), limits=limits, refusals=RefusalMetrics(registry))
        async with connected(served) as client:
            await client.log_in("alice")
            ten = " ".join(f'/private/{number} "x"' for number in range(10))
            assert await client.run(f"SETMETADATA INBOX ({ten})") == ["t OK Annotations set"]
            [answer] = await client.run("RENAME INBOX old")
            assert answer == "t NO [LIMIT] a user may have 10 annotations; remove some first"
            assert (await client.run(r"CREATE sent (USE (\Sent))"))[-1].startswith(
                "t NO [LIMIT] a user may have 10 ann"
            )
            assert counted() == {**dict.fromkeys(counted(), 0), "imap_annotations_per_user": 2}
            assert (await client.run("CREATE a/b"))[-1].startswith("t OK")
            assert (await client.run("RENAME a/b c/d"))[-1].startswith("t NO [LIMIT] a user may have 3 folders")
            assert (await client.run("CREATE e"))[-1].startswith("t NO [LIMIT] a user may have 3 folders")
            assert (await client.run(r"CREATE sent (USE (\Sent))"))[-1].startswith("t NO [LIMIT] a user may have 3 fol")
    assert counted() == {**dict.fromkeys(counted(), 0), "imap_annotations_per_user": 2, "imap_folders_per_user": 3}


@pytest.mark.parametrize("command", ["RENAME INBOX old", 'SETMETADATA INBOX (/private/more "x")'])
async def test_refusal_that_names_no_limit_counts_under_none(tmp_path: Path, command: str) -> None:
    registry = CollectorRegistry()
    limits = LimitsConfig(imap_annotations_per_folder=10, imap_annotations_per_user=10)
    async with one_node(tmp_path, limits=limits) as mail:
        served = replace(services(mail), limits=limits, refusals=RefusalMetrics(registry))
        async with connected(served) as client:
            await client.log_in("alice")
            for ten in range(REMOVED_FACTOR):
                names = [f"/private/{ten}/{number}" for number in range(10)]
                for value in ('"x"', "NIL"):
                    values = " ".join(f"{name} {value}" for name in names)
                    assert await client.run(f"SETMETADATA INBOX ({values})") == ["t OK Annotations set"]
            assert await client.run('SETMETADATA INBOX (/private/0/0 "x")') == ["t OK Annotations set"]
            [answer] = await client.run(command)
    code = "METADATA TOOMANY" if command.startswith("SET") else "LIMIT"
    assert answer.startswith(f"t NO [{code}] this user has had too many annotations under different names")
    assert not [one for one in registry.collect() if one.name == "replicator_refusals" and one.samples]


@pytest.mark.parametrize("sent", [b"{3}\r\na\x00b", b"{3+}\r\n\x00ab"])
async def test_nul_needs_a_binary_literal(served: ImapServices, sent: bytes) -> None:
    """RFC 3501 section 9: CHAR8, of which literals are, is any octet but NUL; RFC 3516 section 7: literal8 has it."""
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(b"a SETMETADATA INBOX (/private/comment " + sent + b")\r\n")
        assert (await client.until("a"))[-1] == (
            "a BAD the value of an annotation has NUL only in a binary literal, such as ~{3}"
        )
        assert await client.run("GETMETADATA INBOX /private/comment") == [
            '* METADATA "INBOX" (/private/comment NIL)',
            "t OK Annotations listed",
        ]
