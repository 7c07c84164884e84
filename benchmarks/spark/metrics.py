"""Spark's own counts of its work, and the memory of its process."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, NamedTuple, cast

from pyspark.sql import SparkSession

TASKS_MAX = 100_000


class Work(NamedTuple):
    """Work of a session so far.

    `longest_s`, `median_s`, `tasks`: of the stage with the most work among those of several tasks.
    """

    cpu_s: float
    shuffled_bytes: int
    spilled_bytes: int
    tasks: int
    longest_s: float
    median_s: float


def work(spark: SparkSession) -> Work:
    """Read the counts from the store behind Spark's web pages, which exists without them as well."""
    context = spark.sparkContext
    java = cast("Any", context._jvm)  # noqa: SLF001
    store = cast("Any", context._jsc).sc().statusStore()  # noqa: SLF001
    no_quantiles = cast("Any", context._gateway).new_array(java.double, 0)  # noqa: SLF001
    found = store.stageList(None, *(False, False), no_quantiles, java.java.util.ArrayList())
    stages = [found.apply(number) for number in range(found.size())]
    heaviest = max((stage for stage in stages if stage.numTasks() > 1), key=lambda stage: stage.executorRunTime())
    tasks = store.taskList(heaviest.stageId(), heaviest.attemptId(), TASKS_MAX)
    taken_s = [tasks.apply(number).taskMetrics().get().executorRunTime() / 1e3 for number in range(tasks.size())]
    return Work(
        cpu_s=sum(stage.executorCpuTime() for stage in stages) / 1e9,
        shuffled_bytes=sum(stage.shuffleWriteBytes() for stage in stages),
        spilled_bytes=sum(stage.diskBytesSpilled() for stage in stages),
        tasks=len(taken_s),
        longest_s=max(taken_s),
        median_s=statistics.median(taken_s),
    )


def peak_bytes(spark: SparkSession) -> int:
    """Return the peak resident memory of Spark's process (proc(5), VmHWM): here it is driver and executor."""
    pid = cast("Any", spark.sparkContext._jvm).java.lang.ProcessHandle.current().pid()  # noqa: SLF001
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
