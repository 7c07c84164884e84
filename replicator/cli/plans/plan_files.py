"""A repair plan in a directory or an S3 bucket (`resync.plan`), read on the machine of the command line.

Each file is first copied to a temporary file, even from a directory: Parquet is read from its end, and an object store
delivers objects from their beginning.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import trio

from replicator.cli.target import CommandError
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectMissingError, ObjectStore, ObjectStoreError
from replicator.tasks import PlannedMailbox, Undone
from resync.plan import MANIFEST, MANIFEST_BYTES_MAX, PARTITIONS, PlanManifest, manifest_from

if TYPE_CHECKING:
    from replicator.cli.plans.plan_rows import PlanFile

T = TypeVar("T")

S3 = "s3://"
FILES_MAX = 100_000  # in a plan: enough for a billion mailboxes
MISSING = "pyarrow is not installed here: `pip install 'mail-replicator[inventory]'`"

_PARTITION = PARTITIONS["mailboxes"]
_FILE = re.compile(rf"mailboxes/{_PARTITION}=([^/]+)/[^/._][^/]*\.parquet")


class Plan:
    """A complete repair plan. Every method raises CommandError."""

    def __init__(self, place: str, endpoint: str | None) -> None:
        self._place = place.rstrip("/") or "/"
        if not place.startswith(S3) and not Path(place).is_dir():
            raise CommandError(f"{place}: there is no such directory")
        url = place if place.startswith(S3) else Path(place).absolute().as_uri()
        self._open = _plan_file()
        self._store = ObjectStore(url, Environment(), endpoint, settings="the plan's place and `--endpoint`")
        self.manifest = self._read_manifest()
        self._files = self._find_files()

    def check_whole(self, masters: Collection[str]) -> None:
        """Check that all rows of these masters exist, by the row counts at the files' ends."""
        for master in sorted(masters):
            found = 0
            for name in self._files.get(master, ()):
                with self._opened(name) as file:
                    found += file.rows
            self._check_rows(master, found)

    def mailboxes(self, masters: Collection[str], *, trees: bool) -> Iterator[PlannedMailbox | Undone]:
        """Yield the planned folder trees of these masters, or else their mailboxes, one master after the other."""
        for master in sorted(masters):
            found = 0
            for name in self._files.get(master, ()):
                with self._opened(name) as file:
                    found += file.rows
                    yield from file.planned(trees=trees)
            self._check_rows(master, found)

    def _check_rows(self, master: str, found: int) -> None:
        if found != (told := self.manifest.mailboxes[master]):
            files = f"{self._place}/mailboxes/{_PARTITION}={master}"
            raise CommandError(
                f"{files} has {found} rows, but {told} by {MANIFEST}: the plan is incomplete; make it again"
            )

    @contextmanager
    def _opened(self, name: str) -> Iterator[PlanFile]:
        with tempfile.TemporaryFile() as file:
            try:
                self._fetch(name, file)
            except ObjectMissingError:
                raise CommandError(f"{self._place}/{name} has disappeared: is the plan being made again?") from None
            file.seek(0)
            yield self._open(file, f"{self._place}/{name}", self.manifest.nodes.keys())

    def _read_manifest(self) -> PlanManifest:
        with tempfile.TemporaryFile() as file:
            try:
                self._fetch(MANIFEST, file, MANIFEST_BYTES_MAX)
            except ObjectMissingError:
                raise CommandError(
                    f"{self._place} has no {MANIFEST}: there is no plan, or an unfinished one; make it again"
                ) from None
            file.seek(0)
            try:
                return manifest_from(file.read())
            except ValueError as error:
                raise CommandError(f"{self._place}/{MANIFEST}: {error}") from error

    def _find_files(self) -> dict[str, list[str]]:
        """Return the plan's files by master, in order."""

        async def names() -> list[str]:
            found: list[str] = []
            async with aclosing(self._store.list("mailboxes")) as listing:
                async for info in listing:
                    found.append(info.name)
                    if len(found) > FILES_MAX:
                        raise CommandError(f"{self._place} holds more than {FILES_MAX} files of mailboxes")
            return found

        files: dict[str, list[str]] = {}
        try:
            for name in sorted(trio.run(names)):
                if match := _FILE.fullmatch(name):
                    files.setdefault(match[1], []).append(name)
        except ObjectStoreError as error:
            raise CommandError(str(error)) from error
        return files

    def _fetch(self, name: str, file: BinaryIO, bytes_max: int | None = None) -> None:
        """Copy an object into the file. Raises ObjectMissingError, too."""

        async def copy() -> None:
            async with aclosing(self._store.get(name)) as parts:
                async for part in parts:
                    file.write(part)
                    if bytes_max is not None and file.tell() > bytes_max:
                        raise CommandError(f"{self._place}/{name} is larger than {bytes_max} bytes")

        try:
            trio.run(copy)
        except ObjectMissingError:
            raise
        except ObjectStoreError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{tempfile.gettempdir()}: {error.strerror or error}; is the disk full?") from error


def _plan_file() -> Callable[[BinaryIO, str, Collection[str]], PlanFile]:
    """Import and return `PlanFile`. Raises CommandError if pyarrow is missing."""
    try:
        from replicator.cli.plans.plan_rows import PlanFile  # noqa: PLC0415  see MISSING
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise CommandError(MISSING) from error
    return PlanFile
