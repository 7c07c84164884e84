"""`replicator diff` and `check --spark` as processes, on machines that may lack Java, memory or workers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark.job.command import _print
from tests.spark.clusters import NODES, random_clusters
from tests.spark.commands import QUICK, replicator
from tests.spark.java import needs_java
from tests.spark.standalone import standalone
from tests.spark.summaries import clean
from tests.spark.writing import write_clusters


@pytest.fixture(scope="module")
def inventories(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    places = write_clusters(random_clusters(30), NODES[:2], tmp_path_factory.mktemp("inventories"))
    return [f"--inventory={node}={place}" for node, place in places.items()]


def test_memory_option_is_refused_under_spark_submit(inventories: list[str], tmp_path: Path) -> None:
    arguments = ("diff", *inventories, "--out", str(tmp_path / "out"), "--memory", "2g")
    done = replicator(*arguments, environment={"PYSPARK_GATEWAY_PORT": "1"})
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "--memory and --scratch come too late under spark-submit" in done.stderr


def test_missing_inventory_directory_is_reported(inventories: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("gone", "file"):
        done = replicator("diff", inventories[0], f"--inventory=b={tmp_path / name}", "--out", str(tmp_path / "out"))
        why = f"Error: {tmp_path / name}, given as b's inventory, is not a directory on this machine\n"
        assert (done.returncode, done.stderr) == (1, why)
    done = replicator("diff", inventories[0], f"--inventory=b=/{'x' * 300}", "--out", str(tmp_path / "out"))
    assert done.stderr == f"Error: cannot look at /{'x' * 300}, given as b's inventory: File name too long\n"


def test_missing_java_is_reported(inventories: list[str], tmp_path: Path) -> None:
    done = replicator("diff", *inventories, "--out", str(tmp_path / "out"), environment={"JAVA_HOME": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"Error: Spark needs Java, and JAVA_HOME is {tmp_path}, where there is no bin/java; in"
    )
    assert done.stderr.count("\n") == 1


def test_too_old_java_is_reported(inventories: list[str], tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_302\"' >&2\n")
    java.chmod(0o700)
    done = replicator("diff", *inventories, "--out", str(tmp_path / "out"), environment={"JAVA_HOME": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {java} is Java 8, too old for Spark; install Java 17 or later")
    assert done.stderr.count("\n") == 1


@needs_java
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--memory", "900000g"], "the machine has less memory than --memory asks for"),
        pytest.param(["--master", "spark://nowhere"], "Invalid master URL: spark://nowhere", marks=pytest.mark.long),
    ],
)
def test_failed_start_of_spark_is_reported_in_one_line(
    inventories: list[str], tmp_path: Path, options: list[str], why: str
) -> None:
    done = replicator("diff", *inventories, "--out", str(tmp_path / "out"), *options)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: Spark: {why}")
    assert done.stderr.count("\n") == 1


@pytest.mark.long
@needs_java
def test_wait_for_executors_ends_after_a_timeout(inventories: list[str], tmp_path: Path) -> None:
    """Dynamic allocation, which requests executors only when there is work, is on."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.dynamicAllocation.enabled true\nspark.dynamicAllocation.shuffleTracking.enabled true\n"
    )
    impatient = (
        "import spark.job.session; spark.job.session.EXECUTOR_TIMEOUT_S = 1; from replicator.cli import main; main()"
    )
    with standalone(0, tmp_path) as url:
        done = subprocess.run(
            [sys.executable, "-c", impatient, "check", "--spark", "--master", url, *QUICK, *inventories],
            capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {url} has provided no executor for 1 s; does it have workers")
    assert done.stderr.count("\n") == 1


def test_unrepresentable_inventory_time_is_printed_in_ms(capsys: pytest.CaptureFixture[str]) -> None:
    one, *others = clean(2).nodes
    _print(replace(clean(2), nodes=(replace(one, taken_ms=1 << 62), *others)), "/o")
    said = capsys.readouterr().out
    assert "dc1, at 4,611,686,018,427,387,904 ms after 1970: 1,502 mailboxes" in said
    assert "dc2, at 2026-11-22 08:20:00 UTC: 1,502 mailboxes" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["diff", "--inventory=a=/x", "--out=/o"],
            "give --inventory NODE=PLACE, such as dc1=/srv/inventories/dc1, at least 2",
        ),
        (["diff", "--inventory=a=/x", "--inventory=/y", "--out=/o"], "give --inventory NODE=PLACE"),
        (["diff", "--inventory=a=/x", "--inventory=a=/y", "--out=/o"], "a is given twice"),
        (["diff", "--inventory=a=/x", "--inventory=b=/y", "--out=/o", "--scratch=/nope"], "'/nope' does not exist"),
        (["diff", "--inventory=a=/x", "--inventory=b=/y", "--out=/o", "--memory=100m"], "100m is too little for Spark"),
        (["diff", "--inventory=a=/x", "--inventory=b=/y", "--out=/o", "--conf=x=y"], "'x=y' is not a setting"),
        (["check", "--spark"], "give --inventory NODE=PLACE"),
        (["check", "--spark", "--inventory=a=/x", "--repair"], "--spark checks inventories"),
        (["check", "--url=http://127.0.0.1:1", "--inventory=a=/x"], "work only with --spark"),
    ],
)
def test_wrong_usage(arguments: list[str], why: str) -> None:
    done = replicator(*arguments)
    assert done.returncode == 2
    assert why in done.stderr
