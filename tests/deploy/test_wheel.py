"""The wheel, installed into an environment of its own with no more than a node needs, far from the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.deploy.installed import ROOT, Program, deliver, subjects
from tests.end_to_end.helpers.in_process import free_ports

pytestmark = pytest.mark.long

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

OBSERVER = """
import os, sys

def observe(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        path = os.path.abspath(arguments[0])
        if path.startswith({tree!r}) and not path.startswith({libraries!r}):
            with open({log!r}, "a") as log:
                log.write(path + "\\n")

sys.addaudithook(observe)
"""
"""A `sitecustomize` that notes which files of the source tree Python opens, but for installed libraries."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--no-index", "--wheel-dir", directory, ROOT)
    [file] = directory.iterdir()
    return file


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel, and with what constraints-node.txt has, as links to what is installed."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    [site] = (home / "lib").glob("python3.*/site-packages")
    for path in libraries():
        (site / path.name).symlink_to(path)
    observer = OBSERVER.format(tree=f"{ROOT}{os.sep}", libraries=str(ROOT / ".venv"), log=str(home.parent / "opened"))
    (site / "sitecustomize.py").write_text(observer, "utf-8")
    pip("--python", home / "bin" / "python", "install", "--no-index", wheel)
    return home


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments), "--no-deps"]
    subprocess.run(command, check=True, timeout=300, cwd="/")


def libraries() -> Iterator[Path]:
    """Yield the files and directories of the distributions that a node needs."""
    for line in (ROOT / "constraints-node.txt").read_text("utf-8").splitlines():
        if line.startswith(" "):
            continue
        pin = Requirement(line.rstrip("\\ "))
        if pin.marker is None or pin.marker.evaluate():
            installed = distribution(pin.name)
            assert pin.specifier.contains(installed.version), f"{pin} and not {installed.version}: run `make setup`"
            tops = {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
            yield from (Path(str(installed.locate_file(top))) for top in tops)


def test_wheel_has_all_files_of_the_packages_and_no_others(wheel: Path) -> None:
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == sources


def test_node_runs_and_reads_nothing_of_the_source_tree(home: Path, tmp_path: Path) -> None:
    program = Program([str(home / "bin" / "replicator")])
    nowhere, config, inventory = tmp_path / "empty", tmp_path / "etc" / "dc1.toml", tmp_path / "inventory"
    nowhere.mkdir()
    config.parent.mkdir()
    imap, lmtp = free_ports(2)
    config.write_text(
        f'[node]\nid = "dc1"\n[listen]\nimap = "127.0.0.1:{imap}"\nlmtp = "127.0.0.1:{lmtp}"\n', encoding="utf-8"
    )
    assert program.run("--version", cwd=nowhere) == f"mail-replicator {PROJECT['project']['version']}\n"
    program.run("user", "add", "alice", "--config", config, stdin="secret\n", cwd=nowhere)
    with program.node(config, nowhere):
        assert program.run("health", "--config", config, cwd=nowhere) == "dc1 is healthy\n"
        deliver(lmtp, "alice", "delivered")
        assert subjects(imap, "alice", "secret") == ["delivered"]
        program.run("inventory", "--to", inventory, "--config", config, cwd=nowhere)
    assert list(inventory.rglob("*.parquet"))
    assert list(nowhere.iterdir()) == []
    opened = home.parent / "opened"
    assert not opened.exists(), opened.read_text("utf-8")
