"""Small files at any place to which Spark can write: a path, `s3a://`, `hdfs://`.

Pyspark itself has no way to do that.
"""

from __future__ import annotations

from typing import Protocol, cast

from pyspark.sql import SparkSession


class _Path(Protocol):
    def getName(self) -> str: ...  # noqa: N802  Java's names


class _Status(Protocol):
    def isDirectory(self) -> bool: ...  # noqa: N802
    def getPath(self) -> _Path: ...  # noqa: N802


class _Stream(Protocol):
    def write(self, content: bytearray) -> None: ...
    def close(self) -> None: ...


class _System(Protocol):
    """The part of Hadoop's `FileSystem` that is used here."""

    def exists(self, path: object) -> bool: ...
    def getFileStatus(self, path: object) -> _Status: ...  # noqa: N802
    def listStatus(self, path: object) -> list[_Status]: ...  # noqa: N802
    def create(self, path: object, overwrite: bool, /) -> _Stream: ...  # noqa: FBT001
    def delete(self, path: object, recursive: bool, /) -> bool: ...  # noqa: FBT001


def names(spark: SparkSession, folder: str) -> list[str]:
    """Return the names in a directory; empty if there is none. Raises NotADirectoryError."""
    path, system = _found(spark, folder)
    if not system.exists(path):
        return []
    if not system.getFileStatus(path).isDirectory():
        raise NotADirectoryError(folder)
    return sorted(status.getPath().getName() for status in system.listStatus(path))


def remove(spark: SparkSession, place: str) -> None:
    """Remove a file or a directory with everything below it."""
    path, system = _found(spark, place)
    system.delete(path, True)


def write(spark: SparkSession, place: str, content: bytes) -> None:
    """Write a whole file, replacing an existing one."""
    path, system = _found(spark, place)
    stream = system.create(path, True)
    stream.write(bytearray(content))
    stream.close()


def _found(spark: SparkSession, place: str) -> tuple[object, _System]:
    context = spark.sparkContext
    machine = context._jvm  # noqa: SLF001
    assert machine is not None
    path = machine.org.apache.hadoop.fs.Path(place)
    return path, cast("_System", path.getFileSystem(context._jsc.hadoopConfiguration()))  # noqa: SLF001
