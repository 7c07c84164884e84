"""A copy of this machine with systemd as its first process, of which nothing remains.

Its files are those of this machine under an overlay in memory, its processes and its network are in namespaces of their
own. It starts nothing by itself, and sees no other network. Only root can make it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

BOOTS_WITHIN_S = 60.0
COMMAND_WITHIN_S = 300.0
TOOLS = ("unshare", "nsenter", "setpriv", "pivot_root", "ip")
INIT = Path("/lib/systemd/systemd")
CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Where version 2 of control groups may be mounted, alone or beside version 1."""
CONTROLLERS = "cgroup.controllers"

BOOT = r"""
set -eu
shared=$1 work=$2 root=$2/root
mount --make-rprivate /
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$root"
mount -t proc proc "$root/proc"
mount --bind -o ro "$root/proc/sys" "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
for place in dev/shm tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root/$place"; done
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --bind "$shared" "$root/mnt"
ip link set lo up
# From here on, all that is changed is in memory. The copy starts nothing that the machine starts.
cd "$root"
rm -rf etc/systemd/system/* usr/lib/systemd/system/*.wants
: >etc/fstab
: >etc/machine-id
printf '[Unit]\nDefaultDependencies=no\n' >etc/systemd/system/copy.target
mkdir run/before
pivot_root . run/before
exec chroot . env -i container=copy PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c '
    umount --lazy /run/before
    rmdir /run/before
    exec /lib/systemd/systemd --system --unit=copy.target --show-status=no --log-target=journal'
"""


def reason_unavailable() -> str | None:
    """Return the reason why there can be no copy of this machine, or None."""
    if os.geteuid() != 0:
        return "a copy of the machine needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or not INIT.exists():
        return f"not installed: {', '.join(missing) or 'systemd'}"
    if not any((each / CONTROLLERS).exists() for each in CGROUPS):
        return "version 2 of control groups is not mounted"
    if "overlay" not in Path("/proc/filesystems").read_text("utf-8"):
        return "the kernel has no overlay file systems"
    return None


class Machine:
    """The copy. `pid`: of its first process, as this machine counts."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def run(self, *command: str, check: bool = True) -> str:
        """Return what a command says there, on both outputs; it runs as root. Raises CalledProcessError."""
        enter = ["nsenter", f"--target={self._pid}", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup"]
        clean = ["env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"]
        done = subprocess.run(
            [*enter, "--root", "--wd", "--", *clean, "DEBIAN_FRONTEND=noninteractive", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command} ends with {done.returncode}: {done.stdout}"
        return done.stdout

    def exists(self, path: str) -> bool:
        return os.path.lexists(f"/proc/{self._pid}/root{path}")

    def read(self, path: str) -> str:
        return Path(f"/proc/{self._pid}/root{path}").read_text("utf-8")

    def write(self, path: str, text: str) -> None:
        file = Path(f"/proc/{self._pid}/root{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")

    def shown(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", f"--property={name}", "--value", unit).strip()


@contextmanager
def machine(shared: Path, work: Path) -> Iterator[Machine]:
    """Run a copy of this machine. `shared` is its /mnt; `work` an empty directory, which stays empty."""
    cgroup = next(each for each in CGROUPS if (each / CONTROLLERS).exists()) / f"mrtest-{os.getpid()}"
    cgroup.mkdir()
    apart = "setpriv --pdeathsig KILL unshare --mount --pid --fork --cgroup --ipc --uts --net --kill-child=KILL"
    inner = f'echo $$ >"{cgroup}/cgroup.procs"; exec {apart} sh -c "$0" sh "$@"'
    try:
        with subprocess.Popen(["sh", "-c", inner, BOOT, str(shared), str(work)], stdin=subprocess.DEVNULL) as process:
            try:
                yield _booted(process)
            finally:
                for child in psutil.Process(process.pid).children():
                    child.send_signal(signal.SIGKILL)  # and with it all processes of its namespace
                process.wait(30)
    finally:
        _remove(cgroup)


def _booted(process: subprocess.Popen[bytes]) -> Machine:
    deadline = time.monotonic() + BOOTS_WITHIN_S
    while process.poll() is None:
        assert time.monotonic() < deadline, "systemd does not start"
        for child in psutil.Process(process.pid).children():
            copy = Machine(child.pid)
            if copy.exists("/run/systemd/private"):
                copy.run("systemctl", "start", "systemd-journald.service")
                return copy
        time.sleep(0.05)
    raise AssertionError(f"the copy of the machine ends with {process.returncode}")


def _remove(cgroup: Path) -> None:
    """Remove a group of processes and those in it, once the last process has gone."""
    deadline = time.monotonic() + 30
    while cgroup.exists():
        for each in sorted((path for path in cgroup.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):
                each.rmdir()
        with suppress(OSError):
            cgroup.rmdir()
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)
