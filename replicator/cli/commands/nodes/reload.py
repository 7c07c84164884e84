"""`replicator reload`: makes a node read its certificates again."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from replicator.cli.client import NodeClient
from replicator.cli.output import echo_json
from replicator.cli.target import one_node, token_option


@click.command("reload")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The node's configuration.")
@click.option("--url", help="The node's address, such as http://127.0.0.1:1080.")
@token_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reload(config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Read the node's certificates again, as SIGHUP does.

    New connections use the new certificates; existing ones stay. If a file cannot be used, all certificates stay as
    they were. With `workers.doors`, fresh processes serve new connections. The configuration is not read again.
    """
    node = one_node(config_file, url)
    with NodeClient(node) as client:
        certificates = client.reload()
    if as_json:
        echo_json([asdict(certificate) for certificate in certificates])
    elif not certificates:
        click.echo(f"{node.name} uses no certificates")
    for certificate in () if as_json else certificates:
        day = datetime.fromtimestamp(certificate.expires_ms / 1000, UTC)
        until = "until" if day > datetime.now(UTC) else "expired on"
        click.echo(f"{node.name} uses {certificate.file} ({certificate.name}, {until} {day:%Y-%m-%d})")
