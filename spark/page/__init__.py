"""The parts that the report's page is made of (`spark.report`): elements, tables, charts, words. No pyspark."""
