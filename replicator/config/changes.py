"""The keys in which two configurations differ, by the names that operators write (docs/configuration.md)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from replicator.config.config import Config
from replicator.config.template import config_text

ROOT = Path("/")


def changed_keys(before: Config, after: Config) -> tuple[str, ...]:
    """Return the keys, sorted, such as `durability.copies`; of arrays of tables the name alone, such as `[[peer]]`."""
    old, new = _values(before), _values(after)
    return tuple(sorted(key for key in old | new if old.get(key) != new.get(key)))


def _values(config: Config) -> dict[str, object]:
    """Return the values of all keys, written as in a file, except those that have their defaults."""
    return dict(_flat(tomllib.loads(config_text(config, ROOT))))


def _flat(sections: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, section in sections.items():
        if isinstance(section, dict):
            for key, value in section.items():
                yield f"{name}.{key}", value
        else:
            yield f"[[{name}]]", section
