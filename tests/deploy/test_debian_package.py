"""The Debian package, built, and installed in a copy of this machine, where systemd runs a node by its unit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicator.cli.manual import PROCEDURES
from tests.deploy.installed import ROOT
from tests.deploy.machine import Machine, machine, reason_unavailable
from tests.end_to_end.helpers.pages import block

PYTHON = Path("/usr/bin/python3.11")
UNAVAILABLE = reason_unavailable() or (None if PYTHON.exists() else "python3.11, Debian 12's, is not installed")
pytestmark = [pytest.mark.long, pytest.mark.skipif(UNAVAILABLE is not None, reason=f"Debian package: {UNAVAILABLE}")]

UNIT = "mail-replicator@dc1.service"
CONFIG = "/etc/mail-replicator/dc1.toml"
OWN_PYTHON = "/usr/lib/mail-replicator/bin/python3"

DELIVER = """
import smtplib
with smtplib.LMTP("127.0.0.1", 24) as mta:
    mta.sendmail("a@example.org", ["alice"], b"Subject: delivered\\r\\n\\r\\nx\\r\\n")
"""
READ = """
import imaplib
with imaplib.IMAP4("127.0.0.1", 143) as client:
    client.login("alice", "secret")
    client.select("INBOX")
    print(client.fetch("1:*", "(BODY.PEEK[HEADER.FIELDS (SUBJECT)])"))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the package."""
    directory = tmp_path_factory.mktemp("packages")
    build = [str(ROOT / "deploy" / "debian" / "build"), str(directory)]
    subprocess.run(build, env={**os.environ, "PYTHON": sys.executable}, check=True, timeout=600)
    return directory


@pytest.fixture(scope="module")
def copy(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(packages, tmp_path_factory.mktemp("machine")) as made:
        yield made


def first_node() -> list[list[str]]:
    """Return the commands of the installation page for the first node."""
    return [shlex.split(line) for line in block("installation.md", "The first node", "sh").splitlines()]


def state(copy: Machine, name: str) -> str:
    return copy.shown(UNIT, name)


def test_the_package_is_installed_run_upgraded_and_purged(copy: Machine, packages: Path) -> None:
    """One story, since each installation takes some ten seconds."""
    [deb] = [f"/mnt/{file.name}" for file in packages.iterdir()]
    copy.run("apt-get", "install", "--yes", deb)
    assert copy.run("replicator", "--version").startswith("mail-replicator ")
    check_files(copy)
    check_that_nothing_is_enabled(copy)
    start_first_node(copy)
    copy.run(OWN_PYTHON, "-c", DELIVER)
    assert "Subject: delivered" in copy.run(OWN_PYTHON, "-c", READ)
    check_jail(copy)
    copy.run("systemctl", "reload", UNIT)
    assert state(copy, "ActiveState") == "active"
    check_that_a_node_that_hangs_is_restarted(copy)
    check_upgrade(copy, deb)
    check_purge(copy)


def check_files(copy: Machine) -> None:
    assert copy.exists("/usr/share/man/man1/replicator-node.1.gz")
    for file in (
        "/usr/share/bash-completion/completions/replicator",
        "/usr/share/zsh/vendor-completions/_replicator",
        "/usr/share/fish/vendor_completions.d/replicator.fish",
    ):
        assert "_REPLICATOR_COMPLETE" in copy.read(file)
    for script in (ROOT / "deploy" / "procedures").iterdir():
        installed = f"{PROCEDURES}/{script.name}"
        assert copy.read(installed) == script.read_text("utf-8")
        assert copy.run("stat", "--format=%U %a", installed).split() == ["root", "755"]


def check_that_nothing_is_enabled(copy: Machine) -> None:
    assert copy.run("systemctl", "list-units", "--all", "--no-legend", "mail-replicator@*") == ""
    assert copy.run("find", "/etc/systemd/system", "-name", "mail-replicator*") == ""


def start_first_node(copy: Machine) -> None:
    """Do what the page says. A password is asked for on a terminal, and otherwise read from the standard input."""
    for command in first_node():
        asks = command[:3] == ["replicator", "user", "add"]
        copy.run(*(["sh", "-c", 'echo secret | exec "$0" "$@"'] if asks else []), *command)
    assert (state(copy, "ActiveState"), state(copy, "UnitFileState")) == ("active", "enabled")
    owned = ("/etc/mail-replicator/users.passwd", "/etc/mail-replicator/http.tokens", "/var/lib/mail-replicator/dc1")
    assert copy.run("stat", "--format=%U %a", *owned).splitlines() == [
        "mail-replicator 600",
        "mail-replicator 600",
        "mail-replicator 700",
    ]


def check_jail(copy: Machine) -> None:
    """Have the node do what it rarely does, and look at what it is allowed, as the kernel has it."""
    copy.run("replicator", "inventory", "--to", "/var/lib/mail-replicator/dc1/inventories/1", "--config", CONFIG)
    copy.run("replicator", "checkpoint", "--config", CONFIG)
    process = state(copy, "MainPID")
    status = dict(line.split(":\t", 1) for line in copy.read(f"/proc/{process}/status").splitlines())
    bind_only = f"{1 << 10:016x}"
    assert [status[name] for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")] == [bind_only, bind_only, "1", "2"]
    mounts = copy.read(f"/proc/{process}/mounts")
    assert re.search(r"^\S+ / \S+ ro[, ]", mounts, re.MULTILINE)
    assert re.search(r"^\S+ /var/lib/mail-replicator/dc1 \S+ rw[, ]", mounts, re.MULTILINE)


def check_that_a_node_that_hangs_is_restarted(copy: Machine) -> None:
    """Stop the node's process, which then gives no signs of life. The wait for one is shortened."""
    copy.write(f"/etc/systemd/system/{UNIT}.d/watchdog.conf", "[Service]\nWatchdogSec=2s\n")
    copy.run("systemctl", "daemon-reload")
    copy.run("systemctl", "restart", UNIT)
    hanging = state(copy, "MainPID")
    copy.run("kill", "-STOP", hanging)
    copy.run("sh", "-c", f"while [ $(systemctl show -P NRestarts {UNIT}) = 0 ]; do sleep 0.2; done")
    copy.run("sh", "-c", f"until systemctl --quiet is-active {UNIT}; do sleep 0.2; done")
    assert state(copy, "MainPID") not in {"0", hanging}
    log = copy.run("journalctl", "--unit", UNIT, "--output=cat")
    assert "Watchdog timeout" in log
    assert "Fatal Python error: Aborted" in log  # and then where each thread stood


def check_upgrade(copy: Machine, deb: str) -> None:
    """Install the package again: that restarts nothing. A restart keeps the mail."""
    process = state(copy, "MainPID")
    said = copy.run("apt-get", "install", "--yes", "--reinstall", deb)
    assert f"{UNIT} runs the version before; now restart it: systemctl restart {UNIT}" in said
    assert state(copy, "MainPID") == process
    copy.run("systemctl", "restart", UNIT)
    assert "Subject: delivered" in copy.run(OWN_PYTHON, "-c", READ)


def check_purge(copy: Machine) -> None:
    """Remove the package, which keeps what it has not brought."""
    said = copy.run("apt-get", "purge", "--yes", "mail-replicator")
    assert (state(copy, "ActiveState"), state(copy, "Result")) == ("inactive", "success")
    gone = (
        "/usr/lib/mail-replicator",
        "/usr/share/mail-replicator",
        "/usr/bin/replicator",
        "/usr/lib/systemd/system/mail-replicator@.service",
    )
    assert not [path for path in gone if copy.exists(path)]
    assert copy.run("find", "/etc/systemd/system", "-name", "mail-replicator@*.service") == ""
    for path in ("/etc/mail-replicator", "/var/lib/mail-replicator"):
        assert f"{path} is not empty, and stays" in said
    assert copy.exists("/var/lib/mail-replicator/dc1/node.db")
