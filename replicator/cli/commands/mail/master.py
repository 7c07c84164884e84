"""`replicator master`: shows or changes the node that numbers a folder's changes."""

from __future__ import annotations

from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.group import HelpfulGroup
from replicator.cli.output import echo_json, json_option
from replicator.cli.target import node_options, one_node, token_option


@click.group(cls=HelpfulGroup)
def master() -> None:
    """Show or move the master of a folder: the node that numbers its changes.

    A master moves by itself to the node where its mailbox is used. Which node is master affects only speed.
    """


@master.command()
@click.argument("user")
@click.argument("mailbox")
@node_options
@json_option
def show(user: str, mailbox: str, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Print the id of the node that masters USER's MAILBOX.

    A node knows the master if it has handled a change to the folder since a node or link last came or went.
    """
    with NodeClient(one_node(config_file, url)) as client:
        found = client.master(user, mailbox)
    if as_json:
        echo_json({"master": found})
    else:
        click.echo(
            found or "this node does not know the master yet; it learns it with the next change made through this node"
        )


@master.command()
@click.argument("user")
@click.argument("mailbox")
@click.argument("node")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The configuration of any node.")
@click.option("--url", help="The address of any node, such as http://127.0.0.1:1080.")
@token_option
@json_option
def move(user: str, mailbox: str, node: str, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Make NODE the master of USER's MAILBOX, even while other nodes use it.

    Unless `mastership.scope` is "mailbox", all mailboxes of the same scope move along.
    """
    with NodeClient(one_node(config_file, url)) as client:
        client.move_master(user, mailbox, node)
    if as_json:
        echo_json({"master": node})
    else:
        click.echo(f"{node} is now the master of {user}'s {mailbox}")
