"""The configuration file that docs/configuration.md shows: all keys, and their defaults."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from replicator.config import Config, LimitsConfig, PeerConfig, default_config, load_config, sections
from tests.end_to_end.helpers.pages import block

SHOWN = block("configuration.md", "The whole file", "toml")
WHOLE = re.sub(r"^# (?=\w+ = |\[)", "", SHOWN, flags=re.MULTILINE)
"""With the lines that are comments there."""

EXAMPLES = {"node", "listen", "peers", "tls"}
"""Sections with examples in place of defaults."""


def loaded(directory: Path, text: str) -> Config:
    file = directory / "dc1.toml"
    file.write_text(text, "utf-8")
    return load_config(file)


def test_file_has_all_keys() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(sections.__file__).parent.glob("*.py"))
    taken = set(re.findall(r'(?:\btake|\btake_required|\bdoor)\(\s*"(\w+)"', source))
    tables = [
        table for found in tomllib.loads(WHOLE).values() for table in (found if isinstance(found, list) else [found])
    ]
    assert {key for table in tables for key in table} == taken | {field.name for field in fields(LimitsConfig)}


def test_file_has_the_defaults(tmp_path: Path) -> None:
    shown = loaded(tmp_path, SHOWN)
    defaults = default_config("dc1", tmp_path, peers=(PeerConfig("dc2", shown.peers[0].address),))
    for field in fields(Config):
        if field.name not in EXAMPLES | {"workers"}:  # the default number of doors depends on the machine
            assert getattr(shown, field.name) == getattr(defaults, field.name), field.name


def test_what_is_commented_out_can_be_set(tmp_path: Path) -> None:
    whole = WHOLE.replace('mode = "none"', '# mode = "none"').replace('"file:checkpoints"', '"s3://bucket/prefix"')
    config = loaded(tmp_path, whole)
    assert config.oauth is not None
    assert config.client_certificates is not None
    assert config.clusters
    assert config.certificates
    assert config.listen.imaps is not None
    assert config.checkpoint.endpoint is not None
