"""Read the footers of Parquet files without a Spark job for each file."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

from pyspark.sql import SparkSession

_AT_ONCE = 16
"""Files read at once: the time goes into waiting for an object store."""


class Footer(NamedTuple):
    """A file's footer. `file`: its URI; `schema`: the schema as Parquet writes it; `rows`: the number of rows."""

    file: str
    schema: str
    rows: int


def footers(spark: SparkSession, files: Iterable[str]) -> list[Footer]:
    """Return the footers of files given by URIs.

    Raises PySparkException or Py4JJavaError if a file cannot be read or is not Parquet.
    """
    context = spark.sparkContext
    java = cast("Any", context._jvm)  # noqa: SLF001  # Spark's own reader has no name in Python
    configuration = cast("Any", context._jsc).hadoopConfiguration()  # noqa: SLF001
    parquet, path = java.org.apache.parquet.hadoop, java.org.apache.hadoop.fs.Path

    def footer(file: str) -> Footer:
        of = parquet.util.HadoopInputFile.fromPath(path(java.java.net.URI(file)), configuration)
        reader = parquet.ParquetFileReader.open(of)
        try:
            return Footer(file, reader.getFileMetaData().getSchema().toString(), reader.getRecordCount())
        finally:
            reader.close()

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(footer, files))
