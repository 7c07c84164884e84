"""All commands, each with the place of its module."""

from __future__ import annotations

import click

from replicator.cli.group import LazyGroup

COMMANDS = {
    "apply": "replicator.cli.apply:apply",
    "check": "replicator.cli.check:check",
    "checkpoint": "replicator.cli.checkpoint:checkpoint",
    "cluster": "replicator.cli.cluster:cluster",
    "diff": "spark.command:diff",
    "import": "replicator.cli.import_mail:import_mail",
    "inventory": "replicator.cli.inventory:inventory",
    "master": "replicator.cli.master:master",
    "node": "replicator.cli.node:node",
    "rebuild": "replicator.cli.rebuild:rebuild",
    "resync": "replicator.cli.resync:resync",
    "scrub": "replicator.cli.check:scrub",
    "status": "replicator.cli.status:status",
    "undelete": "replicator.cli.undelete:undelete",
    "user": "replicator.cli.user:user",
}

cli = LazyGroup(
    name="replicator",
    commands_at=COMMANDS,
    about="Mail in several data centres, the same everywhere: run nodes, see how they are, bring mail in.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(package_name="mail-replicator", message="%(package)s %(version)s")(cli)
