"""The parts of the program that a core and its doors have in common."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

import replicator
from replicator.workers import interface

ROOT = Path(replicator.__file__).parents[1]
APART = ("replicator.runtime",)
"""Packages that shared modules may import besides each other: they mean nothing to the other side."""

OF_A_DOOR = (
    *APART,
    "replicator.imap",
    "replicator.lmtp",
    "replicator.mail_doors",
    "replicator.network",
    "replicator.oauth",
    "replicator.socketmap",
    "replicator.user_sources",
)
"""Packages that modules of `workers` may import, where the process of a door is put together."""


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_shared_modules_import_no_others_that_may_differ() -> None:
    shared = tuple(part.removesuffix(".py").replace("/", ".") for part in interface.SHARED)
    graph = grimp.build_graph("replicator", "protocol", "resync", cache_dir=None)
    assert all(any(is_in(module, (part,)) for module in graph.modules) for part in shared)
    foreign = {
        (module, imported)
        for module in graph.modules
        if is_in(module, shared)
        for imported in graph.find_modules_directly_imported_by(module)
        if imported != "replicator" and not is_in(imported, (*shared, *APART))
    }
    assert {pair for pair in foreign if not pair[0].startswith("replicator.workers.")} == set()
    assert [pair for pair in foreign if not is_in(pair[1], OF_A_DOOR)] == []


@pytest.mark.parametrize("part", interface.SHARED)
def test_each_shared_part_changes_the_digest(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = interface.interface_digest()
    assert before == interface.interface_digest()
    changed = next(path for path in sorted([ROOT / part, *(ROOT / part).rglob("*.py")]) if path.is_file())
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == changed))
    assert interface.interface_digest() != before
