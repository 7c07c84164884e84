"""Manifests whose own hash is right, and that no backup has."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backup.node_files import Backup, Invoke, NodeFiles

Edit = Callable[[bytes], bytes]


def replacing(what: bytes, by: bytes) -> Edit:
    return lambda text: re.sub(what, lambda _: by, text, count=1)


def sealed_again(manifest: bytes, edit: Edit) -> bytes:
    text = edit(b"".join(manifest.splitlines(keepends=True)[:-1]))
    return text + hashlib.sha256(text).hexdigest().encode() + b"\n"


SIZE, STARTED = rb'"size_bytes": \d+', rb'"started_ms": \d+'

HOSTILE = {
    "path": (replacing(b"files/aliases", b"../../etc/passwd"), "no backup has such a file as '../../etc/passwd'"),
    "name": (replacing(rb'"files/aliases"', b"7"), "a name that is not a text"),
    "long name": (replacing(b"files/aliases", b"x" * 999), f"as '{'x' * 80}'"),
    "infinite": (replacing(SIZE, b'"size_bytes": Infinity'), "not a whole one"),
    "negative": (replacing(SIZE, b'"size_bytes": -5'), "not a whole one"),
    "fraction": (replacing(SIZE, b'"size_bytes": 5.5'), "not a whole one"),
    "bool": (replacing(SIZE, b'"size_bytes": true'), "not a whole one"),
    "huge": (replacing(SIZE, b'"size_bytes": ' + b"9" * 300), "not a whole one"),
    "larger than files are": (replacing(SIZE, f'"size_bytes": {2**63}'.encode()), "not a whole one"),
    "years": (replacing(STARTED, b'"started_ms": ' + b"9" * 30), "not a whole one"),
    "year 10000": (replacing(STARTED, b'"started_ms": 253402300800000'), "not a whole one"),
    "version": (replacing(rb'"schema": \d+', b'"schema": ' + b"9" * 300), "not a whole one"),
    "format": (replacing(rb'"format": \d+', b'"format": ' + b"9" * 300), "not a whole one"),
    "deep": (replacing(rb'"lacking": \[\]', b'"lacking": ' + b"[" * 100_000 + b"]" * 100_000), "nested too deeply"),
    "hash": (replacing(rb'"sha256": "[^"]+"', b'"sha256": "00"'), "a SHA-256 that is not one"),
    "lacking": (replacing(rb'"lacking": \[\]', b'"lacking": ["x"]'), "a SHA-256 that is not one"),
    "twice": (lambda text: text + text.splitlines(keepends=True)[1], "lists a file twice"),
    "fewer": (lambda text: b"".join(text.splitlines(keepends=True)[:-1]), "lists 4 files, but has 5 by its head"),
    "a list": (lambda text: b"[]\n" + text, "damaged: TypeError"),
    "nothing": (lambda _text: b"\n", "damaged: JSONDecodeError"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_refused_in_one_short_line_and_nothing_changes(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path, case: str
) -> None:
    edit, reason = HOSTILE[case]
    back_up(tmp_path / "backup")
    manifest, before = tmp_path / "backup" / "manifest.jsonl", node.shown()
    manifest.write_bytes(sealed_again(manifest.read_bytes(), edit))
    for option in ("--check", "--replace"):
        done = invoke("restore", "--from", tmp_path / "backup", option, "--config", node.config_file)
        assert (done.exit_code, reason in done.stderr) == (1, True), (done.stderr, done.exception)
        assert isinstance(done.exception, SystemExit)
        assert (done.stderr.count("\n"), len(done.stderr) < 500) == (1, True), done.stderr
    assert (node.shown(), list(node.data.glob("replaced.*"))) == (before, [])


def test_what_is_sealed_again_unchanged_is_taken(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path
) -> None:
    back_up(tmp_path / "backup")
    manifest = tmp_path / "backup" / "manifest.jsonl"
    sealed = sealed_again(manifest.read_bytes(), lambda text: text)
    assert sealed == manifest.read_bytes()
    manifest.write_bytes(sealed_again(sealed, replacing(STARTED, f'"started_ms": {1 << 47}'.encode())))
    done = invoke("restore", "--from", tmp_path / "backup", "--replace", "--config", node.config_file)
    assert (done.exit_code, "from 6429-" in done.stdout) == (0, True), done.output
    assert json.loads(sealed.splitlines()[0])["files"] == 5
