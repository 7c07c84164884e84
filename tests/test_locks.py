"""The files that say what is installed: every dependency, with the hashes of all its files, and no address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = (
    "constraints-build.txt",
    "constraints.txt",
    "constraints-node.txt",
    "constraints-tools.txt",
    "constraints-docs.txt",
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pinned(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes of what the file pins, by name."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in (ROOT / name).read_text("utf-8").replace("\\\n", " ").splitlines():
        requirement, *hashes = line.split(" --hash")
        parsed = Requirement(requirement)
        [version] = parsed.specifier
        assert version.operator == "=="
        found[canonicalize_name(parsed.name)] = version.version, [f"--hash{value}".strip() for value in hashes]
    return found


def wanted(requirements: list[str | dict[str, str]]) -> list[Requirement]:
    return [Requirement(text) for text in requirements if isinstance(text, str)]


@pytest.mark.parametrize("name", LOCKS)
def test_each_version_is_pinned_with_hashes_and_no_address(name: str) -> None:
    assert "://" not in (ROOT / name).read_text("utf-8")
    for version, hashes in pinned(name).values():
        assert version
        assert hashes
        assert all(HASH.fullmatch(each) for each in hashes)


def test_all_that_the_project_asks_for_is_pinned() -> None:
    groups, extras = PROJECT["dependency-groups"], PROJECT["project"]["optional-dependencies"]
    sought = {
        "constraints-build.txt": [*groups["build"], *PROJECT["build-system"]["requires"]],
        "constraints.txt": [
            *PROJECT["project"]["dependencies"],
            *groups["dev"],
            *(x for e in extras.values() for x in e),
        ],
        "constraints-node.txt": [*PROJECT["project"]["dependencies"], *extras["inventory"]],
        "constraints-tools.txt": [*groups["tools"], *groups["fuzz"]],
        "constraints-docs.txt": groups["docs"],
    }
    assert tuple(sought) == LOCKS
    for name, requirements in sought.items():
        pins = pinned(name)
        for requirement in wanted(requirements):
            version, _ = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{name}: {requirement}: run `make lock`"


def test_files_agree_about_what_several_of_them_pin() -> None:
    pins = [pinned(name) for name in LOCKS]
    for package in {package for each in pins for package in each}:
        assert len({str(each[package]) for each in pins if package in each}) == 1, package
