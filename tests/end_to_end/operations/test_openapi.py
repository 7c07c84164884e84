"""A real node holds to its OpenAPI document, as Schemathesis tries it: valid and invalid requests at all operations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster
from tests.effort import examples

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
"""Not that valid data are accepted: the document knows types, not all rules, such as that a password is not empty."""

LEFT_OUT = (
    "/page/{name}",
    "/api/v1/events",
    "/api/v1/trace",
    "/api/v1/drain",
    "/api/v1/stop",
    "/api/v1/users/{user}/messages",
    "/api/v1/users/{user}/messages/batch",
)
"""Files of the page; streams without end; what makes the node unhealthy, or ends it; bodies that are no JSON."""

LIMIT_S = 900.0


@pytest.mark.long
def test_node_answers_as_its_document_says(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", ["alice", "bob"], size=1, copies=1) as cluster:
        host, port = cluster.nodes[0].address("http")
        url = f"http://{host}:{port}/api/v1/openapi.json"
        line = [sys.executable, "-m", "schemathesis.cli", "run", url, "--no-color", "--checks", ",".join(CHECKS)]
        line += ["--phases", "coverage,fuzzing", "--max-examples", str(examples(5, 20)), "--request-timeout", "60"]
        line += [part for path in LEFT_OUT for part in ("--exclude-path", path)]
        line += ["--continue-on-failure", "--warnings", "off", "--generation-deterministic"]
        ended = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path)
        assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr
