"""Jobs on Spark: the command `replicator diff`, the start of Spark, and its errors in one line.

The command line uses this package: `command` and `resources` without pyspark, `jobs` once a job is asked for.
"""
