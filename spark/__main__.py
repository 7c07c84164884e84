"""Entry point of the audit for spark-submit: `spark-submit --master yarn .../spark/__main__.py --inventory ...`."""

from __future__ import annotations

from spark.job.command import diff

if __name__ == "__main__":
    diff.main(prog_name="diff")
