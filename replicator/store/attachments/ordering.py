"""Whether a file system writes changes of names in the order in which they were made, all into one journal.

Where it does, one fsync makes safe all that was done before. Its type says so, but for ext3 and ext4: those may have
been made without their journal, and the kernel says whether they were. What nobody says counts as no, which takes
longer and is always right.
"""

from __future__ import annotations

import os
from pathlib import Path

_ALWAYS = frozenset({"xfs"})
_WITH_JOURNAL = frozenset({"ext3", "ext4"})
_MOUNTS = Path("/proc/self/mountinfo")
_DEVICES = Path("/sys/dev/block")
_JOURNALS = Path("/sys/fs/ext4")  # of ext3, too
_NONE = "<none>"


def is_ordered(directory: Path) -> bool:
    """Whether the file system of this directory is known to do so."""
    try:
        device = directory.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        kind = _type(number)
        return kind in _ALWAYS or (kind in _WITH_JOURNAL and _has_journal(number))
    except OSError:
        return False


def _type(number: str) -> str:
    """Of the file system on a device, such as ext4; "" if nothing says so (proc_pid_mountinfo(5)). Raises OSError."""
    mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace").split("\n")
    return next(
        (mount.partition(" - ")[2].split(" ")[0] for mount in mounts if mount and mount.split(" ")[2] == number), ""
    )


def _has_journal(number: str) -> bool:
    """Whether the ext3 or ext4 there has one (Linux, Documentation/ABI/testing/sysfs-fs-ext4). Raises OSError."""
    name = (_DEVICES / number).readlink().name
    return (_JOURNALS / name / "journal_task").read_text(encoding="ascii").strip() != _NONE
