"""Whole jobs: start a session, read the inventories, process them. Every failure becomes a one-line JobError."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from spark.audit import audit, counting
from spark.job.resources import Resources
from spark.job.session import SparkError, session
from spark.reading import inventories
from spark.reading.inventories import InventoryError
from spark.report.summary import IndexSummary, Summary

PATTERNS = "*?[]{}\\"
LOCAL = "file://"


class JobError(Exception):
    """A job failed; the message says what, where, and the remedy."""


def run_audit(
    given: Sequence[str], to: str, resources: Resources, *, overwrite: bool, tell: Callable[[str], None]
) -> Summary:
    """Run `audit`. `given`: inventories, as `NODE=PLACE`. Raises JobError."""
    target = place_of(to)
    with _running("mail-replicator diff", given, resources, tell) as (spark, places):
        return audit.audit(spark, places, target, overwrite=overwrite, tell=tell)


def check_indexes(given: Sequence[str], resources: Resources, *, tell: Callable[[str], None]) -> list[IndexSummary]:
    """Check each node's index of GUIDs, and its mailboxes' counters, against its messages. Raises JobError."""
    with _running("mail-replicator check", given, resources, tell) as (spark, places):
        tell("reading")
        read = inventories.read(spark, places)
        tell("comparing indexes")
        return counting.indexes(read)


@contextmanager
def _running(
    name: str, given: Sequence[str], resources: Resources, tell: Callable[[str], None]
) -> Iterator[tuple[SparkSession, dict[str, str]]]:
    """Yield a session and the places of the inventories by SIDs. Raises JobError."""
    try:
        places = {sid: place_of(place) for sid, place in inventories.places_of(given).items()}
        _check_there(places)
        tell("starting Spark")
        with session(name, resources) as spark:
            yield spark, places
    except (InventoryError, SparkError) as error:
        raise JobError(" ".join(str(error).split("\n"))) from error


def _check_there(places: Mapping[str, str]) -> None:
    """Check places on this machine before Spark takes its time to start. Raises JobError."""
    for sid, place in places.items():
        path = place.removeprefix(LOCAL)
        try:
            is_there = not place.startswith(LOCAL) or Path(path).is_dir()
        except OSError as error:
            raise JobError(f"cannot look at {path}, given as {sid}'s inventory: {error.strerror}") from error
        if not is_there:
            raise JobError(f"{path}, given as {sid}'s inventory, is not a directory on this machine")


def place_of(place: str) -> str:
    """Return a place in a form that all machines of a cluster understand.

    A relative path is below the current directory; `s3:` is what Spark calls `s3a:`. Raises JobError for a place that
    Spark would take for a pattern.
    """
    if found := set(PATTERNS) & set(place):
        raise JobError(f"{place}: Spark reads {min(found)!r} in a name as a pattern; rename the directory")
    if place.startswith("s3://"):
        return "s3a://" + place.removeprefix("s3://").rstrip("/")
    return place.rstrip("/") if "://" in place else f"{LOCAL}{Path(place).absolute()}"
