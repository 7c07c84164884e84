"""The sections about a node's disk: [log], [content], [checkpoint] and [search]."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from protocol.units import GIB, KIB, MIB
from replicator.config import values
from replicator.config.formatting import duration_text, path_text, quoted, size_text, url_text
from replicator.config.source import Section


@dataclass(frozen=True, slots=True)
class LogConfig:
    """History kept for nodes that are away."""

    keep_s: float = 7 * values.DAY_S
    max_size_bytes: int = GIB


def read_log(section: Section) -> LogConfig:
    """Read [log]."""
    return LogConfig(
        keep_s=section.take("keep", values.duration(lowest_s=0.0), LogConfig().keep_s),
        max_size_bytes=section.take("max_size", values.size(lowest_bytes=MIB), LogConfig().max_size_bytes),
    )


def format_log(log: LogConfig) -> str:
    """Return [log] as a file has it."""
    return (
        "[log]    # entries are kept until all nodes have them, or a limit is reached\n"
        f"keep = {duration_text(log.keep_s)}    # time limit; units: ms, s, m, h, d\n"
        f"max_size = {size_text(log.max_size_bytes)}    # size limit; units: B, KiB, MiB, GiB\n"
    )


@dataclass(frozen=True, slots=True)
class ContentConfig:
    """Storage of large message parts, in a directory that nodes may share, and retention of expunged messages.

    `attachments`: the directory; None: in the node's own data.
    """

    inline_max_bytes: int = 64 * KIB
    keep_expunged_s: float = 14 * values.DAY_S
    attachments: Path | None = None


def read_content(section: Section, directory: Path) -> ContentConfig:
    """Read [content]."""
    defaults = ContentConfig()
    # Inline content is part of recipes, which are held in memory whole.
    inline = values.size(lowest_bytes=0, highest_bytes=MIB)
    return ContentConfig(
        inline_max_bytes=section.take("inline_max", inline, defaults.inline_max_bytes),
        keep_expunged_s=section.take("keep_expunged", values.duration(lowest_s=0.0), defaults.keep_expunged_s),
        attachments=section.take("attachments", values.path(directory), None),
    )


def format_content(content: ContentConfig, directory: Path) -> str:
    """Return [content] as a file in `directory` has it."""
    return (
        "[content]\n"
        f"inline_max = {size_text(content.inline_max_bytes)}    # larger MIME parts go to the attachment store\n"
        f"keep_expunged = {duration_text(content.keep_expunged_s)}    # how long `undelete` can restore a message\n"
        + (f"attachments = {path_text(content.attachments, directory)}\n" if content.attachments else "")
    )


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Location of checkpoints: `file:///absolute/path`, or `s3://bucket/prefix` at Amazon or at `endpoint`.

    `shared`: all nodes with this setting and the same URL reach the same objects.
    """

    url: str
    endpoint: str | None = None
    shared: bool = False

    @property
    def directory(self) -> Path | None:
        """The directory of a `file:` URL."""
        url = urlsplit(self.url)
        return Path(unquote(url.path)) if url.scheme == "file" else None


def default_checkpoint(directory: Path) -> CheckpointConfig:
    """Return checkpoints in a directory beside the configuration, in `directory`."""
    return CheckpointConfig((directory / "checkpoints").as_uri())


def read_checkpoint(section: Section, directory: Path) -> CheckpointConfig:
    """Read [checkpoint]."""
    defaults = default_checkpoint(directory)
    url = section.take("url", values.object_store_url(directory), defaults.url)
    endpoint = section.take("endpoint", values.endpoint, None)
    if endpoint is not None and url.startswith("file:"):
        section.problem("endpoint", "it is only for s3:// URLs, but `url` is a directory; leave one of them out")
    return CheckpointConfig(url, endpoint, section.take("shared", values.boolean, defaults.shared))


def format_checkpoint(checkpoint: CheckpointConfig, directory: Path) -> str:
    """Return [checkpoint] as a file in `directory` has it."""
    shared = "shared = true    # all nodes reach the same objects, and exchange very large changes by them\n"
    return (
        "[checkpoint]    # snapshots of all mailboxes and folders, without message bodies\n"
        f"url = {url_text(checkpoint.url, directory)}    # or s3://bucket/prefix\n"
        + (f"endpoint = {quoted(checkpoint.endpoint)}\n" if checkpoint.endpoint else "")
        + (shared if checkpoint.shared else "")
    )


@dataclass(frozen=True, slots=True)
class SearchConfig:
    """Searching. `full_text`: the text of each message is kept on disk as SEARCH compares it."""

    full_text: bool = True


def read_search(section: Section) -> SearchConfig:
    """Read [search]."""
    return SearchConfig(section.take("full_text", values.boolean, SearchConfig().full_text))


def format_search(search: SearchConfig) -> str:
    """Return [search] as a file has it."""
    return f"[search]\nfull_text = {json.dumps(search.full_text)}    # kept for SEARCH\n"
