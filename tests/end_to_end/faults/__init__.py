"""Tests of clusters whose links, disks or processes fail: all nodes become equal again, and no mail is lost.

`campaign` draws such faults from seeds; `make soak-processes` runs it.
"""
