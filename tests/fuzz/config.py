"""A configuration file: values or problems, each with its line, and the same values again from what is written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from replicator.config import config_text, default_config, load_config
from replicator.errors import ConfigError
from tests.fuzz.target import Target

_DIRECTORY = TemporaryDirectory(prefix="fuzz-")
"""The directory of the file; it is removed when the process ends."""


def check(data: bytes) -> None:
    """Load the file. Every problem has its line; what is loaded is written and loaded again."""
    path = Path(_DIRECTORY.name, "node.toml")
    path.write_bytes(data)
    try:
        config = load_config(path, serving=True)
    except ConfigError as error:
        lines = str(error).split("\n")
        assert all(line.startswith(f"{path}:") for line in lines), lines
        assert len(lines) <= 2 + data.count(b"\n") + len(data)
        return
    path.write_text(config_text(config, path.parent), "utf-8")
    assert load_config(path, serving=True) == config


TARGET = Target(
    "config",
    check,
    seeds=(
        config_text(default_config("dc1", Path(_DIRECTORY.name)), Path(_DIRECTORY.name)).encode(),
        b'node = {id = "dc1"}\n[listen]\npeer = "[::1]:1"\nimap = "[::1]:0"\n[[peer]]\nid = "dc2"\naddress = "h:1"\n',
        b"[node]\nid = " + b"9" * 4400,
        b"[node]\nid = " + b"[" * 1100,
        b'[node]\nid = "dc1"\n[checkpoint]\nurl = "s3://bucket/x"\nendpoint = "http://127.0.0.1:9000"\nshared = true\n',
        b'[node]\nid = "dc1"\n[tls]\ncertificate = "node.toml"\nkey = "node.toml"\n[limits]\nfetch_sections = 9\n',
    ),
    words=(
        *(
            b"\n",
            b" = ",
            b"[",
            b"]",
            b"[[",
            b"]]",
            b"{",
            b"}",
            b'"',
            b"'",
            b'"""',
            b"\\u0000",
            b".",
            b",",
            b"#",
            b"\\",
            b"\xff",
            b"\0",
        ),
        *(
            b"node",
            b"id",
            b"data",
            b"peer",
            b"address",
            b"listen",
            b"[checkpoint]\nurl = ",
            b"imap",
            b"copies",
            b"heartbeat",
            b"timeout",
            b"passwd_file",
        ),
        *(
            b"9" * 20,
            b"9" * 4400,
            b"-1",
            b"1e999",
            b"nan",
            b"true",
            b"1979-05-27",
            b"1s",
            b"1GiB",
            b"file:x",
            b"s3://b",
            b"http://[",
            b"[::1]:1",
        ),
        *(b"a" * 300, b"[" * 1100, b"a." * 1100, b"{a=" * 400),
    ),
    is_cut=False,
)
