"""A Spark session for one command. A missing prerequisite (Java, memory, a master) is reported in one line.

By default Spark runs in a virtual machine that this process starts, on all cores. Its output goes to a file, whose last
lines are read if Spark does not start: operators see this program's messages, not Spark's log. Under spark-submit there
is a virtual machine already, with its own settings.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark.job.resources import Resources
from spark.job.settings import SETTINGS

JAVA_MIN = 17  # the minimum for Spark 4
JAVA_TIMEOUT_S = 60.0
EXECUTOR_TIMEOUT_S = 300.0
EXECUTOR_EVERY_S = 1.0
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # in the environment: spark-submit has started the virtual machine
MEMORY_SHARE, MEMORY_MAX_GIB = 2, 8  # by default half of the machine's memory, and at most this many GiB

_ADVICE = {
    "OutOfMemoryError": "it ran out of memory; give it more with --memory, or compare fewer inventories at once",
    "Could not reserve enough space": "the machine has less memory than --memory asks for",
    "Cannot allocate memory": "the machine has less memory than --memory asks for",
    "Too small maximum heap": "it needs more memory than --memory gives",
    "System memory": "it needs more memory than --memory gives",
    "No space left on device": "the disk is full; --scratch names another directory for the scratch files",
    "ARITHMETIC_OVERFLOW": "a number in an inventory is larger than any that a node writes",
    "All masters are unresponsive": "the master does not answer; is --master correct?",
    "Master must either be": "--master is not a URL that Spark knows, such as local[*] or spark://host:7077",
    "Could not parse Master URL": "--master is not a URL that Spark knows, such as local[*] or spark://host:7077",
    "S3AFileSystem not found": "it cannot read s3a:// yet; docs/spark.md says what to add",
    "No FileSystem for scheme": "it does not know this kind of place; use a path, s3a:// or hdfs://",
}


_THROWN = re.compile(r"^.*?(?:[\w.$]+(?:Exception|Error)): ")
"""Matches the beginning of Java's errors, before the text for people."""


_UNREADABLE = re.compile(r"Encountered error while reading file (\S.*?)\.? +SQLSTATE")


class SparkError(Exception):
    """Spark could not start, or gave up; one line with the remedy."""


@contextmanager
def session(name: str, resources: Resources) -> Iterator[SparkSession]:
    """Yield a session that ends with the block. Spark's errors within the block are raised as SparkError."""
    with _without_logging(), tempfile.TemporaryFile() as log:
        try:
            started = _start(name, resources, log)
            try:
                with _with_executors(started):
                    yield started
            finally:
                with suppress(Py4JError, ConnectionError):  # Spark may be what has failed
                    started.stop()
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise SparkError(f"Spark: {_explained(str(error), _tail(log))}") from error


@contextmanager
def _without_logging() -> Iterator[None]:
    """Disable logging: py4j would log tracebacks of interrupts, and of errors that are raised here anyway."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _start(name: str, resources: Resources, log: IO[bytes]) -> SparkSession:
    conf = SparkConf().setAppName(name).setAll(list(SETTINGS.items()))
    if resources.master is not None:
        conf.setMaster(resources.master)
    if SUBMITTED in os.environ:
        if resources.memory or resources.scratch:
            raise SparkError(
                "--memory and --scratch come too late under spark-submit, which has options of its own for them"
            )
        return SparkSession(SparkContext.getOrCreate(conf.setAll(list(resources.conf.items()))))
    _check_java()
    conf.setIfMissing("spark.master", "local[*]").setAll(list(_own_settings(resources).items()))
    if str(conf.get("spark.master")).startswith("local"):
        conf.set("spark.driver.bindAddress", "127.0.0.1").set("spark.driver.host", "127.0.0.1")
    conf.setAll(list(resources.conf.items()))
    gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]  # ships no types
    started = SparkSession(SparkContext(conf=conf, gateway=gateway))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark's own handler asks the jobs to end, and may fail
    if started.version != pyspark.__version__:
        where = os.environ.get("SPARK_HOME", "on the PATH")
        raise SparkError(
            f"the Spark at {where} has version {started.version}, but pyspark has {pyspark.__version__}; unset"
            " SPARK_HOME"
        )
    return started


@contextmanager
def _with_executors(started: SparkSession) -> Iterator[None]:
    """Raise SparkError if no executors come, or if all go away: Spark itself would wait for ever, silently."""
    master = str(started.sparkContext.master)
    if master.startswith("local") or SUBMITTED in os.environ:  # spark-submit has a console, and queues to wait in
        yield
        return
    has_ended, has_none = threading.Event(), threading.Event()
    arguments = (started, has_ended, has_none)
    watch = threading.Thread(target=_watch, args=arguments, daemon=True)  # a daemon, since it may hang if Spark hangs
    watch.start()
    try:
        yield
    except Exception as error:  # an error of the cancelled jobs: other modules raise their own
        if not has_none.is_set():
            raise
        what = (
            f"{master} has provided no executor for {EXECUTOR_TIMEOUT_S:.0f} s; does it have workers with a core and"
            " memory"
        )
        raise SparkError(f"{what} to spare? --conf spark.executor.memory says how much is asked for") from error
    finally:
        has_ended.set()
        watch.join(EXECUTOR_TIMEOUT_S)


def _watch(started: SparkSession, has_ended: threading.Event, has_none: threading.Event) -> None:
    """Cancel the waiting jobs once no executor has been found for EXECUTOR_TIMEOUT_S."""
    context = started.sparkContext
    looked = 0
    with suppress(Py4JError, ConnectionError):  # if Spark has failed, its own error explains it
        tracker = cast("Any", context._jsc).sc().statusTracker()  # noqa: SLF001  # has no name in Python
        while not has_ended.wait(EXECUTOR_EVERY_S):
            has_executor = len(tracker.getExecutorInfos()) > 1  # the first is the driver
            looked = 0 if has_executor or not context.statusTracker().getActiveJobsIds() else looked + 1
            if looked * EXECUTOR_EVERY_S > EXECUTOR_TIMEOUT_S:
                has_none.set()
                context.cancelAllJobs()


def _own_settings(resources: Resources) -> Mapping[str, str]:
    found = {
        "spark.driver.memory": resources.memory or _default_memory(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    return found | ({} if resources.scratch is None else {"spark.local.dir": resources.scratch})


def _default_memory() -> str:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{max(1, min(gib // MEMORY_SHARE, MEMORY_MAX_GIB))}g"


def _check_java() -> None:
    """Raise SparkError if there is no suitable Java."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    advice = f"install Java {JAVA_MIN} or later (on Debian: openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME to it"
    if java is None:
        where = f"JAVA_HOME is {home}, where there is no bin/java" if home else "there is no `java` on the PATH"
        raise SparkError(f"Spark needs Java, and {where}; {advice}")
    try:
        done = subprocess.run(  # noqa: S603  the operator's own java
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkError(f"{java} does not run: {error}; {advice}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if version is not None and int(version[1]) < JAVA_MIN:
        raise SparkError(f"{java} is Java {version[1]}, too old for Spark; {advice}")


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - 20_000))
    return log.read().decode(errors="replace")


def _explained(error: str, log: str) -> str:
    """Return an explanation of the error. `log` is the virtual machine's output, used if that did not start."""
    text = log if "JAVA_GATEWAY" in error else error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    thrown = [line for line in lines if _THROWN.search(line)]
    cause = _THROWN.sub("", (causes[-1:] or thrown or lines or ["it ended without a message"])[0])[:500]
    if file := _UNREADABLE.search(text):
        return f"{file[1]} cannot be read ({cause}); copy the inventory again, or write a new one"
    for sign, advice in _ADVICE.items():
        if sign in text:
            return f"{advice} ({sign})"
    return cause
