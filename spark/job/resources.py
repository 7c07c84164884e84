"""The resources of a job, as operators name them. Usable without pyspark, which may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a job.

    `master`: None means this machine, or the master that spark-submit sets. `memory`: of the virtual machine that this
    process starts (`4g`, `900m`); `scratch`: a directory for data that does not fit into memory; None means Spark's own
    default. `conf`: Spark's own settings, which override the others.
    """

    master: str | None = None
    memory: str | None = None
    scratch: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
