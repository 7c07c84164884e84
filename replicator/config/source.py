"""A configuration file that is being read: values are taken one by one, and every problem is noted with its line.

Reading never stops at a problem: a wrong or missing value is noted and replaced. `finish` raises one error for all
problems, so a replacement never leaves the loader.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from protocol.units import MIB
from replicator.config.positions import KeyPath, key_lines, line_of
from replicator.errors import ConfigError

T = TypeVar("T")

FILE_MAX_BYTES = MIB
"""A configuration is a few KiB; a wrong file name must not be read into memory whole."""

TOML_POSITION = re.compile(r" \(at (?:line ([0-9]+), column [0-9]+|end of document)\)$")

TOML_ADVICE = {
    "Invalid value": '; text stands in quotes, such as "dc1"',
    "Cannot overwrite a value": "; the key is there twice",
}
"""Likely mistakes of operators, by tomllib's words."""


class Source:
    """The parsed file and its problems. Raises ConfigError if the file cannot be read or parsed at all.

    `text`: what the file is to hold, if it does not hold that yet.
    """

    def __init__(self, file: Path, text: str | None = None) -> None:
        self.file = file
        self.root: Mapping[str, object] = {}
        self._problems: list[tuple[int, str]] = []
        self._known: dict[str, set[str]] = {}
        text = _read(file) if text is None else text.replace("\r\n", "\n")
        try:
            self.root = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            position = TOML_POSITION.search(str(error))
            line = int(position[1]) if position and position[1] else text.count("\n") + 1
            reason = TOML_POSITION.sub("", str(error))
            raise ConfigError(f"{file}:{line}: invalid TOML: {reason}{TOML_ADVICE.get(reason, '')}") from error
        except (ValueError, RecursionError):  # tomllib does not say where
            raise ConfigError(
                f"{file}: a number has thousands of digits, or lists or tables nest hundreds deep; shorten it"
            ) from None
        self._lines = key_lines(text)

    def problem(self, path: KeyPath, text: str) -> None:
        """Note a problem with the value at `path`."""
        self._problems.append((line_of(self._lines, path), text))

    def section(self, name: str) -> Section:
        """Return the table `[name]`; empty if the file has none."""
        table = self.root.get(name, {})
        if not isinstance(table, dict):
            self.problem((name,), f"{name} must be a section: write [{name}] and its keys below")
            table = {}
        return Section(self, name, (name,), table)

    def sections(self, name: str) -> list[Section]:
        """Return the tables `[[name]]`, in order."""
        self.learn(name)
        tables = self.root.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self.problem((name,), f"{name} must be a list of sections: write [[{name}]] above the keys of each")
            return []
        return [Section(self, name, (name, number), table) for number, table in enumerate(tables)]

    def learn(self, section: str, key: str | None = None) -> None:
        """Register a section or key as known."""
        keys = self._known.setdefault(section, set())
        if key is not None:
            keys.add(key)

    def finish(self) -> None:
        """Note unknown keys. Raise ConfigError, with a line for each problem, if there are any."""
        for name, value in self.root.items():
            if name not in self._known:
                self.problem(
                    (name,), f"unknown section [{name}]; the most similar one is [{_nearest(name, self._known)}]"
                )
            elif isinstance(value, dict):
                self._check_keys(name, (name,), value)
            elif isinstance(value, list):
                for number, table in enumerate(value):
                    self._check_keys(name, (name, number), table)
        if self._problems:
            raise ConfigError("\n".join(f"{self.file}:{line}: {text}" for line, text in sorted(self._problems)))

    def _check_keys(self, section: str, path: KeyPath, table: object) -> None:
        if not isinstance(table, dict) or not self._known[section]:
            return  # noted by `sections`
        for key in table:
            if key in self._known[section]:
                continue
            homes = sorted(name for name, keys in self._known.items() if key in keys)
            where = " or ".join(f"[{home}]" for home in homes)
            advice = f"it belongs in {where}" if homes else self._nearest_key(section, key)
            self.problem((*path, key), f"unknown key {key!r} in [{section}]; {advice}")

    def _nearest_key(self, section: str, key: str) -> str:
        return f"the most similar one is {_nearest(key, self._known[section])!r}"


class Section:
    """One table of the file. Taking a key registers it as known."""

    def __init__(self, source: Source, name: str, path: KeyPath, table: Mapping[str, object]) -> None:
        source.learn(name)
        self._source = source
        self._name = name
        self._path = path
        self._table = table

    @property
    def given(self) -> bool:
        """True if the file has the section, even if it is empty."""
        return self._name in self._source.root

    def learn(self, *keys: str) -> None:
        """Register keys as known, where none is taken."""
        for key in keys:
            self._source.learn(self._name, key)

    def take(self, key: str, parse: Callable[[object], T], default: T) -> T:
        """Return the key's value, or `default` if it is missing or wrong."""
        self._source.learn(self._name, key)
        if key not in self._table:
            return default
        try:
            return parse(self._table[key])
        except ValueError as error:
            self.problem(key, str(error))
            return default

    def take_required(self, key: str, parse: Callable[[object], T], example: T) -> T:
        """Return the value as `take` does, but note a problem if the key is missing."""
        if key not in self._table:
            shown = f'add, for example, {key} = "{example}"'
            self._source.problem(self._path, f"{key!r} is missing in [{self._name}]: {shown}")
        return self.take(key, parse, example)

    def problem(self, key: str, text: str) -> None:
        """Note that the key's value is wrong."""
        self._source.problem((*self._path, key), f"{key}: {text}")


def line_in_file(file: Path, path: KeyPath) -> int:
    """Return the line of a key, or of its section if the file does not have the key. Raises ConfigError."""
    return line_of(key_lines(_read(file)), path)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: the configuration cannot be read: {error.strerror}") from error
    if len(data) > FILE_MAX_BYTES:
        raise ConfigError(f"{file}: larger than {FILE_MAX_BYTES} bytes; this is not a configuration file")
    try:
        # TOML has two kinds of line ends, and tomllib's messages count lines by LF.
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: not UTF-8; save the file as UTF-8 text") from error


def _nearest(word: str, known: Mapping[str, object] | set[str]) -> str:
    # A cutoff of 0 always gives an answer: a known name helps the operator, however different it is.
    return difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.0)[0]
