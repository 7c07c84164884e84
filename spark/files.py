"""Small files at whatever place Spark can write to: a path, `s3a://`, `hdfs://`; pyspark has no way of its own."""

from __future__ import annotations

from typing import Protocol, cast

from pyspark.sql import SparkSession


class _Status(Protocol):
    def isDirectory(self) -> bool: ...  # noqa: N802  Java's names


class _Stream(Protocol):
    def write(self, content: bytearray) -> None: ...
    def close(self) -> None: ...


class _System(Protocol):
    """Of Hadoop's `FileSystem`, what is used here."""

    def exists(self, path: object) -> bool: ...
    def getFileStatus(self, path: object) -> _Status: ...  # noqa: N802
    def listStatus(self, path: object) -> list[_Status]: ...  # noqa: N802
    def create(self, path: object, overwrite: bool, /) -> _Stream: ...  # noqa: FBT001
    def delete(self, path: object, recursive: bool, /) -> bool: ...  # noqa: FBT001


def is_taken(spark: SparkSession, folder: str) -> bool:
    """Whether a file is there, or a directory that is not empty."""
    path, system = _found(spark, folder)
    return system.exists(path) and (not system.getFileStatus(path).isDirectory() or len(system.listStatus(path)) > 0)


def is_there(spark: SparkSession, place: str) -> bool:
    """Whether there is such a file or directory."""
    path, system = _found(spark, place)
    return system.exists(path)


def remove(spark: SparkSession, place: str) -> None:
    """With all that is below it."""
    path, system = _found(spark, place)
    system.delete(path, True)


def write(spark: SparkSession, place: str, content: bytes) -> None:
    """A whole file, in place of one that is there."""
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
