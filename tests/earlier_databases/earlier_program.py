"""The program of an earlier version, from the history of the repository, and what a machine has installed."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from benchmarks.clusters.cluster import Site

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "master_election", "resync", "replicator")

COMMIT = "c3872958ac8bdca3e26b39f4a1154cf6fad028ba"
"""The oldest commit that links with today's nodes, and so the oldest one that a rolling upgrade begins with.

Eight hours of commits before it have the same protocol version, but break a link that brings them a new folder in a
batch (ENTRIES). None of them was released. Whoever changes `PROTOCOL_VERSION` names the commit that does so.
"""

PROTOCOL_VERSION = 7
"""The version of the protocol at that commit."""

SCHEMA_VERSION = 14
"""The schema of the databases at that commit."""


def reason_unavailable() -> str | None:
    """Return why the history does not have the commit; None if it does."""
    if shutil.which("git") is None:
        return "git is not installed"
    found = subprocess.run(_git("cat-file", "-e", f"{COMMIT}^{{commit}}"), capture_output=True, check=False)
    if found.returncode:
        return f"the history here lacks commit {COMMIT[:8]}: the clone is shallow, or this is no clone"
    return None


def extract(directory: Path) -> Path:
    """Put the program of that commit into a new directory, and return the directory."""
    archive = subprocess.run(_git("archive", COMMIT, *PACKAGES), capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(directory, filter="data")
    return directory


class Machine:
    """The program installed on one node's machine: a link, which a node follows when it starts."""

    def __init__(self, link: Path, program: Path) -> None:
        self._link = link
        self.install(program)

    def install(self, program: Path) -> None:
        """Install another version. A node that runs goes on as it is."""
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(program)

    def site(self) -> Site:
        """Return the site of the machine's node. Python looks for modules in the working directory first."""
        return Site(f"env --chdir={self._link}")


def _git(*arguments: str) -> list[str]:
    return ["git", "-C", str(ROOT), *arguments]
