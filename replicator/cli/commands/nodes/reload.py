"""`replicator reload`: makes a node read its configuration and certificates again."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.output import echo_json, json_option
from replicator.cli.target import node_options, one_node


@click.command("reload")
@node_options
@json_option
def reload(config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Read the node's configuration and certificates again, as SIGHUP does.

    New connections use the new certificates; existing ones stay. With `workers.doors`, fresh processes serve new
    connections. Of the configuration, [quota] and `priority` are in force at once, and so are [[peer]], `removed`
    and [durability] unless [tls] has changed, too; of all other keys that have changed, the node says that they need a
    restart. If a file cannot be used, all stays as it was.
    """
    node = one_node(config_file, url)
    with NodeClient(node) as client:
        certificates = client.reload()
        restart_for = () if as_json else client.status().restart_for
    if as_json:
        echo_json([asdict(certificate) for certificate in certificates])
    elif not certificates:
        click.echo(f"{node.name} uses no certificates")
    for certificate in () if as_json else certificates:
        day = datetime.fromtimestamp(certificate.expires_ms / 1000, UTC)
        until = "until" if day > datetime.now(UTC) else "expired on"
        click.echo(f"{node.name} uses {certificate.file} ({certificate.name}, {until} {day:%Y-%m-%d})")
    if restart_for:
        click.echo(f"{node.name} needs a restart to use the new values of {', '.join(restart_for)}")
