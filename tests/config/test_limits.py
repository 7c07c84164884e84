import re
import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from replicator.config import LimitsConfig, config_text, default_config, load_config
from replicator.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
LIMITS = fields(LimitsConfig)


def written(directory: Path, key: str, value: object) -> Path:
    file = directory / "node.toml"
    file.write_text(f'node.id = "a"\n[limits]\n{key} = {value}\n', encoding="utf-8")
    return file


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_each_limit_is_a_whole_number_within_its_bounds(tmp_path: Path, limit: object) -> None:
    [(key, lowest, highest, default)] = [
        (one.name, one.metadata["lowest"], one.metadata["highest"], one.default) for one in LIMITS if one is limit
    ]
    assert 0 < lowest <= default <= highest
    for value in (lowest, highest):
        limits = load_config(written(tmp_path, key, value)).limits
        assert limits == replace(LimitsConfig(), **{key: value})
    for wrong in (lowest - 1, highest + 1, "true", '"1"', 1.5):
        with pytest.raises(ConfigError, match=rf"node.toml:3: {key}: expected a whole number from {lowest} to"):
            load_config(written(tmp_path, key, wrong))


def test_written_configuration_has_only_changed_limits(tmp_path: Path) -> None:
    config = default_config("a", tmp_path)
    assert "[limits]" not in config_text(config, tmp_path)
    changed = replace(config, limits=replace(config.limits, imap_fetch_items=7))
    assert "[limits]\nimap_fetch_items = 7\n" in config_text(changed, tmp_path)
    assert "imap_search_keys" not in config_text(changed, tmp_path)


def test_manual_lists_each_limit_with_its_default_and_bound() -> None:
    page = PAGE.read_text("utf-8")
    file = tomllib.loads(page.partition("```toml\n")[2].partition("```")[0])
    assert file["limits"] == asdict(LimitsConfig())
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| \w", page.partition("### limits\n")[2], re.MULTILINE)
    assert rows == [(one.name, str(one.default), str(one.metadata["highest"])) for one in LIMITS]
