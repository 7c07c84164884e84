from __future__ import annotations

from pathlib import Path

import pytest

from replicator.config import load_config
from replicator.errors import ConfigError


def test_directories_of_http_are_absolute_or_in_a_bucket(tmp_path: Path) -> None:
    file = tmp_path / "dc1.toml"
    places = '["inventories", "../elsewhere", "/srv/x", "s3://bucket/prefix"]'
    file.write_text(f'[node]\nid = "dc1"\n[http]\ndirectories = {places}\n', "utf-8")
    expected = (str(tmp_path / "inventories"), str(tmp_path.parent / "elsewhere"), "/srv/x", "s3://bucket/prefix")
    assert load_config(file).http.directories == expected
    file.write_text('[node]\nid = "dc1"\n[http]\ndirectories = "inventories"\n', "utf-8")
    with pytest.raises(ConfigError, match=r"dc1.toml:4: directories: expected a list of at most 100 directories"):
        load_config(file)
