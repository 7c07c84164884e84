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


@pytest.mark.parametrize(
    ("more", "lacks"),
    [
        ("", "`tokens` in [http] and a [[certificate]], or [tls] with certificate and key"),
        ('[http]\ntokens = "t"', "a [[certificate]], or [tls] with certificate and key"),
        ('[[certificate]]\nfile = "pem"\nkey = "pem"', "`tokens` in [http]"),
    ],
)
def test_http_needs_tokens_and_tls_where_others_can_reach_it(tmp_path: Path, more: str, lacks: str) -> None:
    (tmp_path / "pem").touch()
    file = tmp_path / "dc1.toml"
    file.write_text(f'[node]\nid = "dc1"\n[listen]\nhttp = "0.0.0.0:1080"\n{more}\n', "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    needs = f"so it needs {lacks}; or listen on 127.0.0.1"
    assert str(caught.value) == f"{file}:4: http: 0.0.0.0:1080 can be reached from outside, {needs}"
    file.write_text(file.read_text("utf-8").replace("0.0.0.0", "127.0.0.1"), "utf-8")
    assert load_config(file).listen.http is not None
