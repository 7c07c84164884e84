"""Changes of the peers in a configuration file that keep its comments, its order and all else.

A change is made in the lines of the text, where `positions` finds the keys. Then the new text is parsed, and must mean
what the old one means with exactly this change. Where it does not, as in files that write peers as inline tables, there
is an EditError and no new text.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from replicator.config.config import Config
from replicator.config.loader import load_config
from replicator.config.positions import KeyPath, Span, key_spans
from replicator.errors import ConfigError

MANAGED = re.compile(r"managed by|ansible managed|do not edit", re.IGNORECASE)
"""Comments of configuration management above a file that it writes again soon."""

MANAGED_LINES = 10
"""Lines from the beginning in which that counts."""


_WORD = re.compile(r"[a-z0-9-]+")
"""Text of a comment that may be the id of a node."""


class EditError(ConfigError):
    """The file cannot be changed like this. The text says why, and what to do."""


def with_peer(file: Path, text: str, sid: str, address: str) -> str:
    """Return the text of the file with one more peer. If the node had left for good, it has not any more.

    Raises EditError, and ConfigError if the new text is no valid configuration.
    """
    config = load_config(file, text=text)
    _check_managed(file, text)
    for peer in config.peers:
        if peer.id == sid:
            raise EditError(f"{file}: {sid} is a peer already, at {peer.address}")
    edit = _Edit(file, text)
    edit.add_peer(sid, address)
    if sid in config.node.removed:
        edit.unlist(sid)
    peers = [*edit.peers, {"id": sid, "address": address}]
    return edit.finish(peers, [gone for gone in config.node.removed if gone != sid])


def without_peer(file: Path, text: str, sid: str) -> str:
    """Return the text of the file without this peer, and with its id in `node.removed`. Raises as `with_peer`."""
    config = load_config(file, text=text)
    _check_managed(file, text)
    ids = [peer.id for peer in config.peers]
    if sid not in ids:
        known = f"its peers: {', '.join(ids)}" if ids else "it has none"
        raise EditError(f"{file}: {sid} is no peer of {config.node.id}; {known}")
    edit = _Edit(file, text)
    edit.remove_peer(ids.index(sid))
    edit.list_removed(sid, config)
    peers = [peer for peer in edit.peers if peer["id"] != sid]
    return edit.finish(peers, [sid, *config.node.removed])


def _check_managed(file: Path, text: str) -> None:
    for number, line in enumerate(text.split("\n")[:MANAGED_LINES], start=1):
        if line.lstrip().startswith("#") and MANAGED.search(line):
            raise EditError(
                f"{file}:{number}: this says that the file is written elsewhere: {line.strip()!r}; change it there,"
                " and then run `replicator reload`"
            )


class _Edit:
    """The lines of a file with their ends, from 1, as they are changed. Lines that are gone are empty."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._before = tomllib.loads(text)
        self._spans: Mapping[KeyPath, Span] = key_spans(text)
        self._lines = ["", *(f"{line}\n" for line in text.split("\n"))]
        self._lines[-1] = self._lines[-1][:-1]  # the last one has no end, or is an empty one after the last end
        self._end = "\r\n" if self._lines[1].endswith("\r\n") else "\n"  # of new lines
        self.peers: list[Mapping[str, object]] = list(self._before.get("peer", []))

    def add_peer(self, sid: str, address: str) -> None:
        """Add a section below the last peer's, or at the end of the file."""
        last = self._section(len(self.peers) - 1).last if self.peers else self._last_line()
        self._insert(last, "", "[[peer]]", f"id = {json.dumps(sid)}", f"address = {json.dumps(address)}")

    def remove_peer(self, number: int) -> None:
        """Remove a section, from its header to its last key, with the empty line below it, and a comment about it."""
        span = self._section(number)
        end = span.last + (span.last + 1 < self._last_line() and not _bare(self._lines[span.last + 1]))
        first = self._comment_about(number, span.first)
        self._lines[first : end + 1] = [""] * (end + 1 - first)

    def _comment_about(self, number: int, header: int) -> int:
        """Return the first line of the comment directly above the header of a peer's section, if it is about the peer.

        That is one that names this node of the cluster and no other one: any other may be about what is around it.
        Return the header's line if there is none.
        """
        first = header
        while self._lines[first - 1].lstrip().startswith("#"):
            first -= 1
        words = set(_WORD.findall("".join(self._lines[first:header]).lower()))
        ids = [str(peer["id"]) for peer in self.peers]
        others = {self._before["node"]["id"], *ids[:number], *ids[number + 1 :]}
        return first if ids[number] in words and not words & others else header

    def list_removed(self, sid: str, config: Config) -> None:
        """Add a node to `node.removed`, at the front."""
        listed = self._spans.get(("node", "removed"))
        if listed is not None:
            before, bracket, after = self._lines[listed.first].partition("[")
            comma = "," if config.node.removed else ""
            space = " " if comma and after.strip() else ""
            self._lines[listed.first] = f"{before}{bracket}{json.dumps(sid)}{comma}{space}{after}"
            return
        line = self._span(("node", "id")).last
        key = re.match(r"(\s*(?:node\s*\.\s*)?)id(\s*=\s*)", self._lines[line])
        if key is None:
            raise self._by_hand()
        self._insert(line, f"{key[1]}removed{key[2]}[{json.dumps(sid)}]")

    def unlist(self, sid: str) -> None:
        """Take a node out of `node.removed`."""
        first, last = self._span(("node", "removed"))
        text = "".join(self._lines[first : last + 1])
        quoted = rf"""["']{re.escape(sid)}["']"""
        self._lines[first] = re.sub(rf",\s*{quoted}(?=\s*,?\s*\])|{quoted}\s*,?[ \t]*", "", text, count=1)
        self._lines[first + 1 : last + 1] = [""] * (last - first)

    def finish(self, peers: list[Mapping[str, object]], removed: list[str]) -> str:
        """Return the new text, if it means the old one with these peers and removed nodes."""
        text = "".join(self._lines)
        wanted = {**self._before, "peer": peers, "node": {**self._before["node"], "removed": removed}}
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self._by_hand() from error
        node = {"removed": list[str](), **found["node"]}
        if {"peer": [], **found, "node": node} != wanted:
            raise self._by_hand()
        load_config(self._file, text=text)
        return text

    def _insert(self, after: int, *lines: str) -> None:
        """Insert lines after one, which may have no end: then the last of them has none either."""
        line = self._lines[after]
        bare = _bare(line)
        ends = [line[len(bare) :] or self._end, *(self._end for _ in lines[1:]), self._end if line != bare else ""]
        self._lines[after] = "".join(text + end for text, end in zip((bare, *lines), ends, strict=True))

    def _section(self, number: int) -> Span:
        spans = [span for path, span in self._spans.items() if path[:2] == ("peer", number)]
        if not spans:
            raise self._by_hand()
        return Span(min(span.first for span in spans), max(span.last for span in spans))

    def _span(self, path: KeyPath) -> Span:
        if path not in self._spans:
            raise self._by_hand()
        return self._spans[path]

    def _last_line(self) -> int:
        """Return the last line with text: an edit leaves the empty ones at the end where they are."""
        return max((number for number, line in enumerate(self._lines) if _bare(line)), default=1)

    def _by_hand(self) -> EditError:
        return EditError(
            f"{self._file}: peers or `removed` are written there in a way that this command cannot change; change the"
            " file by hand, and then run `replicator reload`"
        )


def _bare(line: str) -> str:
    """Return a line without its end."""
    return line.removesuffix("\n").removesuffix("\r")
