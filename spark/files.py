"""Small files at whatever place Spark can write to: a path, `s3a://`, `hdfs://`; pyspark has no way of its own."""

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
    """Of Hadoop's `FileSystem`, what is used here."""

    def exists(self, path: object) -> bool: ...
    def getFileStatus(self, path: object) -> _Status: ...  # noqa: N802
    def listStatus(self, path: object) -> list[_Status]: ...  # noqa: N802
    def create(self, path: object, overwrite: bool, /) -> _Stream: ...  # noqa: FBT001
    def delete(self, path: object, recursive: bool, /) -> bool: ...  # noqa: FBT001


def names(spark: SparkSession, folder: str) -> list[str]:
    """What lies there; nothing, if there is no such directory. Raises NotADirectoryError."""
    path, system = _found(spark, folder)
    if not system.exists(path):
        return []
    if not system.getFileStatus(path).isDirectory():
        raise NotADirectoryError(folder)
    return sorted(status.getPath().getName() for status in system.listStatus(path))


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
