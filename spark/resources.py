"""What a job runs on, as operators say it. Known without pyspark, which may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Resources:
    """What a job runs on.

    `master`: None: this machine, or what spark-submit says. `memory`: of the virtual machine that this process starts
    (`4g`, `900m`); `scratch`: a directory for what does not fit into that; None: Spark's own default. `conf`: settings
    of Spark's own, which come last.
    """

    master: str | None = None
    memory: str | None = None
    scratch: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
