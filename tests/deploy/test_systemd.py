"""The unit, its user and its directories, as systemd's own tools read them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from replicator.cli.command_list import cli
from replicator.config import Config, load_config
from replicator.runtime.process.service_manager import BEATS_PER_WATCHDOG
from tests.deploy.installed import ROOT

SYSTEMD = ROOT / "deploy" / "systemd"
UNIT = SYSTEMD / "mail-replicator@.service"
EXAMPLE = ROOT / "deploy" / "examples" / "dc1.toml"
EXPOSURE_MAX = 1.5
"""Of 10, as `systemd-analyze security` counts; what it counts is the network, the addresses, a port below 1024, ..."""

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: apt-get install systemd"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files that belong to others need root")


def settings(name: str) -> list[str]:
    """Return the values of a setting of the unit, in order."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE)


def of_dc1(text: str) -> str:
    return text.replace("%i", "dc1")


@needs_analyze
def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "mail-replicator@dc1.service"
    unit.write_text(UNIT.read_text("utf-8").replace("=replicator ", f"={shutil.which('true')} "), "utf-8")
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
def test_the_unit_is_exposed_little(tmp_path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX * 10:.0f}"]
    done = subprocess.run([*command, str(UNIT)], capture_output=True, text=True, check=False, cwd=tmp_path)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+) ", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_MAX, done.stdout


@pytest.mark.parametrize("setting", ["ExecStart", "ExecReload"])
def test_the_unit_runs_commands_that_there_are(setting: str) -> None:
    [line] = settings(setting)
    program, name, *arguments = shlex.split(of_dc1(line))
    assert program == "replicator"
    root = cli.make_context("replicator", [], resilient_parsing=True)
    command = cli.get_command(root, name)
    assert command is not None
    context = command.make_context(name, arguments, parent=root)  # refuses what the command does not take
    assert context.params["config_file"] == Path("/etc/mail-replicator/dc1.toml")


def test_the_unit_and_the_example_agree(tmp_path: Path) -> None:
    config = example(tmp_path)
    state = Path("/var/lib") / of_dc1(settings("StateDirectory")[0])
    assert config.node.data == state
    assert config.checkpoint.directory is not None
    assert config.checkpoint.directory.is_relative_to(state)
    assert settings("RequiresMountsFor") == ["/var/lib/mail-replicator/%i"]
    limits = config.limits
    connections = limits.imap_connections + limits.lmtp_connections + limits.http_connections + limits.peer_strangers
    assert int(settings("LimitNOFILE")[0]) > 4 * connections


def example(directory: Path) -> Config:
    """Load the example, with all that is commented out."""
    text = EXAMPLE.read_text("utf-8")
    file = directory / "dc1.toml"
    file.write_text(re.sub(r"^# (?=\w+ = |\[)", "", text, flags=re.MULTILINE), "utf-8")
    load_config(EXAMPLE)
    return load_config(file)


def test_signs_of_life_are_apart_enough_for_a_busy_machine() -> None:
    [watchdog] = settings("WatchdogSec")
    assert watchdog == "1min"
    assert 60 / BEATS_PER_WATCHDOG >= 10


@needs_root
@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_user_and_directories_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    name = settings("User")[0]
    for tool in ("sysusers", "tmpfiles"):
        shutil.copy(SYSTEMD / f"{tool}.conf", tmp_path / f"{tool}.conf")
    for _ in range(2):  # at each installation
        subprocess.run(["systemd-sysusers", f"--root={tmp_path}", str(tmp_path / "sysusers.conf")], check=True)
        make = ["systemd-tmpfiles", f"--root={tmp_path}", "--create", str(tmp_path / "tmpfiles.conf")]
        subprocess.run(make, check=True)
    [line] = [line for line in (tmp_path / "etc" / "passwd").read_text("utf-8").splitlines() if line.startswith(name)]
    uid = int(line.split(":")[2])
    assert line.endswith(":/usr/sbin/nologin")
    found = {}
    for path in ("etc/mail-replicator", "var/lib/mail-replicator"):
        of = (tmp_path / path).stat()
        found[path] = (of.st_uid, stat.S_IMODE(of.st_mode))
    assert found == {"etc/mail-replicator": (uid, 0o750), "var/lib/mail-replicator": (0, 0o755)}
