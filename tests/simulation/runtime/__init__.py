"""The stand-in for an operating system: the order of tasks, virtual time, disks, and shorter intervals.

`machine` and `world` run nodes on it.
"""
