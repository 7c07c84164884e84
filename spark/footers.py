"""What Parquet files say of themselves at their ends, without a job for each of them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

from pyspark.sql import SparkSession

_AT_ONCE = 16
"""Files: what takes time is to ask an object store."""


class Footer(NamedTuple):
    """`file`: its URI; `schema`: Parquet's own text of it; `rows`: how many there are."""

    file: str
    schema: str
    rows: int


def footers(spark: SparkSession, files: Iterable[str]) -> list[Footer]:
    """Of files given by URIs. Raises PySparkException, Py4JJavaError where one cannot be read or is no Parquet."""
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
