"""Detection of file systems that write all name changes in order, into one journal.

On those, one fsync makes everything safe that was done before. The file system's type tells, except for ext3 and ext4,
which may have been made without a journal: there the kernel tells. Unknown counts as unordered, which is slower and
always safe.
"""

from __future__ import annotations

import os
from pathlib import Path

_ALWAYS = frozenset({"xfs"})
_WITH_JOURNAL = frozenset({"ext3", "ext4"})
_MOUNTS = Path("/proc/self/mountinfo")
_DEVICES = Path("/sys/dev/block")
_JOURNALS = Path("/sys/fs/ext4")  # for ext3 too
_NONE = "<none>"


def is_ordered(directory: Path) -> bool:
    """Return True if the file system of this directory is known to be ordered."""
    try:
        device = directory.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        kind = _type(number)
        return kind in _ALWAYS or (kind in _WITH_JOURNAL and _has_journal(number))
    except OSError:
        return False


def _type(number: str) -> str:
    """Return the file system type of a device, such as ext4, or "" if unknown (proc_pid_mountinfo(5)).

    Raises OSError.
    """
    mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace").split("\n")
    return next(
        (mount.partition(" - ")[2].split(" ")[0] for mount in mounts if mount and mount.split(" ")[2] == number), ""
    )


def _has_journal(number: str) -> bool:
    """Return True if the ext3 or ext4 has a journal (Linux, Documentation/ABI/testing/sysfs-fs-ext4).

    Raises OSError.
    """
    name = (_DEVICES / number).readlink().name
    return (_JOURNALS / name / "journal_task").read_text(encoding="ascii").strip() != _NONE
