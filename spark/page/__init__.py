"""The parts of the report's page (`spark.report`): elements, tables, charts, words. No pyspark."""
