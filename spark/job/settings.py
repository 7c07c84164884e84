"""Settings that the functions of this package require of a Spark session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.ansi.enabled": "true",  # no silent overflow
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.skewJoin.enabled": "true",  # one mailbox may have as many messages as a million others together
    "spark.sql.autoBroadcastJoinThreshold": "64MB",  # usually few mailboxes differ
    "spark.sql.parquet.binaryAsString": "false",  # a cluster may be set to take ids for text
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # inventories are copied between machines
    "spark.hadoop.fs.permissions.umask-mode": "077",  # the written files contain names of users
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # plan.json marks completion
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # a flag that is listed twice is damage, but no reason to stop
}
