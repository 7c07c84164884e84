"""An audit: the stages of the comparison in their order, and what they leave behind: plan, summary and report.

Used by `job` alone, which gives it a Spark session.
"""
