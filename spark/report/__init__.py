"""An audit's counts, and the page of HTML that shows them. No pyspark: the command line uses it where that is missing.

Used by `audit`, which counts, and by `job`, which prints.
"""
