from __future__ import annotations

import pytest

from replicator.cli.commands.monitoring.trace import line_of
from replicator.tracing.traced import TracedCommand, TracedPlace


def line(*places: TracedPlace) -> str:
    return line_of(
        TracedCommand(
            time_ms=0,
            peer="dc2",
            sent=False,
            command="STORE",
            tag=None,
            answers=None,
            took_ms=None,
            places=places,
            entries=("dc1.a 7",),
            size_bytes=64,
            detail="uids=1",
        )
    )


@pytest.mark.parametrize(
    ("user", "folder", "shown"),
    [
        ("alice", "INBOX", "alice/INBOX"),
        ("alice@example.org", "Lists/[x]", "alice@example.org/Lists/[x]"),
        ("alice", "Sent mail", 'alice/"Sent mail"'),
        ("alice", "INBOX, bob/INBOX [dc1.x 1-2]", 'alice/"INBOX, bob/INBOX [dc1.x 1-2]"'),
        ("alice", 'x", bob/INBOX [dc1.x 1-2] "', 'alice/"x\\", bob/INBOX [dc1.x 1-2] \\""'),
        ("alice", "#49494949", 'alice/"#49494949"'),
        ("alice", None, "alice/#49494949"),
        ("alice/INBOX, bob", "x", '"alice/INBOX, bob"/x'),
    ],
)
def test_names_cannot_be_taken_for_other_parts_of_the_line(user: str, folder: str | None, shown: str) -> None:
    place = TracedPlace(user, folder, (b"I" * 16).hex(), is_tree=False)
    assert line(place).endswith(f" 64 B {shown} [dc1.a 7] uids=1")


def test_folder_trees_are_told_from_folders() -> None:
    tree = TracedPlace("alice (folders)", None, "", is_tree=True)
    folder = TracedPlace("a", "(folders)", "", is_tree=False)
    assert ' 64 B "alice (folders)" (folders), a/"(folders)" [' in line(tree, folder)
