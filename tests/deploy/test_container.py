"""What is for containers, read and run without them: files, commands, certificates, nodes by the configurations.

Neither the image nor the cluster is built or started as Docker would do it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml

from replicator.cli.command_list import cli
from replicator.config import Config, load_config
from tests.deploy.installed import ROOT, Program, deliver, wait_for_mail
from tests.end_to_end.helpers.in_process import free_ports

CONTAINER = ROOT / "deploy" / "container"
COMPOSE: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text("utf-8"))
NODES = ("dc1", "dc2", "dc3")
OF_A_NODE = Path("/etc/mail-replicator/node.toml")


class Instruction(NamedTuple):
    name: str
    text: str


def dockerfile() -> list[Instruction]:
    """Return the instructions, each in one line."""
    text = (CONTAINER / "Dockerfile").read_text("utf-8")
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def texts(name: str) -> list[str]:
    return [text for instruction, text in dockerfile() if instruction == name]


def exec_form(text: str) -> list[str]:
    words = json.loads(text)
    assert isinstance(words, list)
    return words


def is_sent(path: str) -> bool:
    """Return True if the .dockerignore lets a file of the tree be copied; its last line that fits decides."""
    sent = True
    for line in (CONTAINER / "Dockerfile.dockerignore").read_text("utf-8").splitlines():
        pattern = line.removeprefix("!")
        if fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path, f"{pattern}/*"):
            sent = line.startswith("!")
    return sent


def params_of(words: list[str]) -> dict[str, Any]:
    """Return what a command of `replicator` takes these words for. Raises click.UsageError."""
    root = cli.make_context("replicator", [], resilient_parsing=True)
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(root, name)
    assert command is not None
    return command.make_context(command.name, list(words), parent=root).params


def test_what_is_copied_is_there_and_is_all_that_a_wheel_is_made_of() -> None:
    copied = set[str]()
    for text in texts("COPY"):
        *sources, _ = text.split()
        if sources[0].startswith("--from="):
            continue
        for source in sources:
            assert (ROOT / source).exists(), source
            assert is_sent(source), source
            copied.add(source)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    packages = re.search(r"^packages = (\[.*\])$", project, re.MULTILINE)
    assert packages
    needed = {*json.loads(packages[1]), "pyproject.toml", "README.md", "LICENSE"}
    assert copied == needed | {"constraints-build.txt", "constraints-node.txt"}
    assert not is_sent("tests/conftest.py")
    assert not is_sent(".git/config")
    assert not is_sent("replicator/cli/__pycache__/x.pyc")


def test_stages_lead_to_an_image_that_runs_a_node_as_its_own_user() -> None:
    names = [instruction.name for instruction in dockerfile()]
    assert set(names) == {
        *("FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE"),
        *("STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
    }
    last = names[len(names) - names[::-1].index("FROM") :]
    assert [name for name in last if name in {"COPY", "RUN", "USER"}] == ["COPY", "RUN", "USER"]  # no RUN after USER
    assert texts("FROM")[0].endswith(" AS build")
    assert next(text for text in texts("COPY") if text.startswith("--from=")).startswith("--from=build ")
    [user] = texts("USER")
    assert re.search(rf"useradd .*--uid \d+ .*{user}(?: |$)", texts("RUN")[-1])
    assert texts("STOPSIGNAL") == ["SIGTERM"]
    [entry], [command], [check] = texts("ENTRYPOINT"), texts("CMD"), texts("HEALTHCHECK")
    assert exec_form(entry) == ["replicator"]
    assert params_of(exec_form(command))["config_file"] == OF_A_NODE
    program, *words = exec_form(check.partition("CMD ")[2])
    asked = params_of(words)
    assert (program, asked["config_file"], asked["live"]) == ("replicator", OF_A_NODE, True)


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell")
def test_shell_can_read_what_it_is_to_run() -> None:
    for script in (*texts("RUN"), (CONTAINER / "certificates.sh").read_text("utf-8")):
        subprocess.run(["sh", "-n", "-c", script], check=True)


def of_compose(path: str) -> Path:
    """Return a path of the compose file, which begins at its directory."""
    return (CONTAINER / path).resolve()


def test_compose_file_names_what_there_is() -> None:
    services: Mapping[str, dict[str, Any]] = COMPOSE["services"]
    assert set(services) == {"certificates", *NODES}
    [volume] = texts("VOLUME")
    exposed = set(texts("EXPOSE")[0].split())
    used, published = set[str](), set[str]()
    for name, service in services.items():
        build = service["build"]
        assert of_compose(build["context"]) == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        for mount in service["volumes"]:
            source, target, *_ = mount.split(":")
            if source.startswith("."):
                assert of_compose(source).is_file(), mount
            else:
                used.add(source)
            if name in NODES and source == name:
                assert target == volume
        for port in service.get("ports", []):
            host, outside, inside = port.split(":")
            assert host == "127.0.0.1"
            assert inside in exposed
            assert outside not in published
            published.add(outside)
        if name in NODES:
            assert f"./{name}.toml:{OF_A_NODE}:ro" in service["volumes"]
            assert service["depends_on"] == {"certificates": {"condition": "service_completed_successfully"}}
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
            assert not [mount for mount in service["volumes"] if mount.partition(":")[0] == "ca"]
    assert used == set(COMPOSE["volumes"])


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return the program, also for scripts that look for `replicator` on the PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    file = directory / "replicator"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m replicator "$@"\n', "utf-8")
    file.chmod(0o755)
    path = os.pathsep.join([str(directory), os.defpath])
    return Program([str(file)], {"PATH": path, "LANG": "C.UTF-8", "PYTHONPATH": os.pathsep.join(sys.path)})


def make_certificates(program: Program, directory: Path) -> Path:
    """Do what the service `certificates` does, with its capabilities, and return the directory of all nodes'."""
    service = COMPOSE["services"]["certificates"]
    made = directory / "certificates"
    for mount in service["volumes"]:
        source, target, *_ = mount.split(":")
        if not source.startswith("."):
            (directory / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
    words = [*service["entrypoint"], *service["command"]]
    words[1:4] = [str(CONTAINER / "certificates.sh"), str(directory / "ca"), str(made)]
    if os.geteuid() == 0:
        kept = "".join(f",+{name.lower()}" for name in service["cap_add"])
        words = ["setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all", *words]
    owner = "nobody" if os.geteuid() == 0 else str(os.geteuid())
    for _ in range(2):  # whenever the cluster is started
        subprocess.run(words, check=True, timeout=120, env={**program.environment, "OWNER": owner})
    return made


def at_home(sid: str, directory: Path, ports: Mapping[str, int]) -> Path:
    """Write the node's configuration with addresses and directories of this machine."""
    text = (CONTAINER / f"{sid}.toml").read_text("utf-8")
    for old, new in {
        "/var/lib/mail-replicator": f"{directory}/data",
        "certificates/": f"{directory.parent}/certificates/{sid}/",
        "users/users.passwd": f"{directory.parent}/users.passwd",
        "0.0.0.0:4420": f"127.0.0.1:{ports[f'{sid} peer']}",
        "0.0.0.0:1143": f"127.0.0.1:{ports[f'{sid} imap']}",
        "0.0.0.0:1024": f"127.0.0.1:{ports[f'{sid} lmtp']}",
        **{f'"{peer}:4420"': f'"127.0.0.1:{ports[f"{peer} peer"]}"' for peer in NODES if peer != sid},
    }.items():
        assert old in text, (sid, old)
        text = text.replace(old, new)
    directory.mkdir()
    (directory / "node.toml").write_text(text, "utf-8")
    return directory / "node.toml"


def configurations(directory: Path) -> Iterator[Config]:
    for sid in NODES:
        (directory / "certificates").mkdir(exist_ok=True)
        yield load_config(CONTAINER / f"{sid}.toml")


def test_configurations_are_those_of_one_cluster(tmp_path: Path) -> None:
    for sid, config in zip(NODES, configurations(tmp_path), strict=True):
        assert config.node.id == sid
        assert {peer.id for peer in config.peers} == {*NODES} - {sid}
        assert all(str(peer.address) == f"{peer.id}:4420" for peer in config.peers)
        assert config.checkpoint.directory is not None
        assert config.checkpoint.directory.is_relative_to(config.node.data)


@pytest.mark.long
def test_three_nodes_run_by_the_configurations_with_the_certificates(program: Program, tmp_path: Path) -> None:
    make_certificates(program, tmp_path)
    doors = [f"{sid} {door}" for sid in NODES for door in ("peer", "imap", "lmtp")]
    ports = dict(zip(doors, free_ports(len(doors)), strict=True))
    files = {sid: at_home(sid, tmp_path / sid, ports) for sid in NODES}
    program.run("user", "add", "alice", "--config", files["dc1"], stdin="secret\n")
    with ExitStack() as stack:
        nodes = [program.node(file, tmp_path) for file in files.values()]
        for node in nodes:
            stack.enter_context(node)
        wait_until_healthy(program, files["dc3"])
        deliver(ports["dc1 lmtp"], "alice", "from dc1")
        wait_for_mail(ports["dc3 imap"], "alice", "secret", "from dc1", tls=True)


def wait_until_healthy(program: Program, file: Path) -> None:
    words = [*program.command, "health", "--config", str(file)]
    run = partial(subprocess.run, words, env=program.environment, capture_output=True, text=True, check=False)
    deadline = time.monotonic() + 120
    while (done := run()).returncode != 0:
        assert time.monotonic() < deadline, done.stderr
