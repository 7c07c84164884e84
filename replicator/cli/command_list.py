"""All commands, with the location of each one's code."""

from __future__ import annotations

import click

from replicator.cli.group import LazyGroup

COMMANDS = {
    "apply": "replicator.cli.commands.apply:apply",
    "ca": "replicator.cli.commands.ca:ca",
    "check": "replicator.cli.commands.check:check",
    "checkpoint": "replicator.cli.commands.checkpoint:checkpoint",
    "cluster": "replicator.cli.commands.cluster:cluster",
    "diff": "spark.job.command:diff",
    "import": "replicator.cli.commands.import_mail:import_mail",
    "inventory": "replicator.cli.commands.inventory:inventory",
    "master": "replicator.cli.commands.master:master",
    "node": "replicator.cli.commands.node:node",
    "quota": "replicator.cli.commands.quota:quota",
    "rebuild": "replicator.cli.commands.rebuild:rebuild",
    "reload": "replicator.cli.commands.reload:reload",
    "resync": "replicator.cli.commands.resync:resync",
    "scrub": "replicator.cli.commands.check:scrub",
    "search": "replicator.cli.commands.search:search",
    "status": "replicator.cli.commands.status:status",
    "token": "replicator.cli.commands.token:token",
    "undelete": "replicator.cli.commands.undelete:undelete",
    "user": "replicator.cli.commands.user:user",
}

cli = LazyGroup(
    name="replicator",
    commands_at=COMMANDS,
    about="Keep mail equal in several data centres: run nodes, see their state, repair them, and import mail.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(package_name="mail-replicator", message="%(package)s %(version)s")(cli)
