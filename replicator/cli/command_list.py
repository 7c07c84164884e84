"""All commands, with the location of each one's code."""

from __future__ import annotations

import click

from replicator.cli.group import LazyGroup

COMMANDS = {
    "apply": "replicator.cli.commands.repair.apply:apply",
    "auth": "replicator.cli.commands.credentials.auth:auth",
    "backup": "replicator.cli.commands.repair.backup:backup",
    "ca": "replicator.cli.commands.credentials.ca:ca",
    "check": "replicator.cli.commands.repair.check:check",
    "checkpoint": "replicator.cli.commands.nodes.checkpoint:checkpoint",
    "cluster": "replicator.cli.commands.nodes.cluster:cluster",
    "completion": "replicator.cli.commands.completion:completion",
    "config": "replicator.cli.commands.nodes.config:config",
    "diff": "spark.job.command:diff",
    "drain": "replicator.cli.commands.nodes.drain:drain",
    "explain": "replicator.cli.commands.mail.explain:explain",
    "export": "replicator.cli.commands.mail.export_mail:export_mail",
    "expunge": "replicator.cli.commands.mail.expunge:expunge",
    "fetch": "replicator.cli.commands.mail.fetch:fetch",
    "health": "replicator.cli.commands.monitoring.health:health",
    "import": "replicator.cli.commands.mail.import_mail:import_mail",
    "inventory": "replicator.cli.commands.repair.inventory:inventory",
    "kick": "replicator.cli.commands.nodes.kick:kick",
    "log": "replicator.cli.commands.mail.log:log",
    "mailbox": "replicator.cli.commands.mail.mailbox:mailbox",
    "master": "replicator.cli.commands.mail.master:master",
    "node": "replicator.cli.commands.nodes.node:node",
    "peer": "replicator.cli.commands.nodes.peer:peer",
    "penalty": "replicator.cli.commands.credentials.penalty:penalty",
    "quota": "replicator.cli.commands.mail.quota:quota",
    "rebuild": "replicator.cli.commands.repair.rebuild:rebuild",
    "reload": "replicator.cli.commands.nodes.reload:reload",
    "restore": "replicator.cli.commands.repair.restore:restore",
    "resync": "replicator.cli.commands.repair.resync:resync",
    "scrub": "replicator.cli.commands.repair.check:scrub",
    "search": "replicator.cli.commands.nodes.search:search",
    "status": "replicator.cli.commands.monitoring.status:status",
    "stop": "replicator.cli.commands.nodes.stop:stop",
    "token": "replicator.cli.commands.credentials.token:token",
    "top": "replicator.cli.commands.monitoring.top:top",
    "trace": "replicator.cli.commands.monitoring.trace:trace",
    "undelete": "replicator.cli.commands.mail.undelete:undelete",
    "user": "replicator.cli.commands.credentials.user:user",
    "who": "replicator.cli.commands.monitoring.who:who",
}

cli = LazyGroup(
    name="replicator",
    commands_at=COMMANDS,
    about="Keep mail equal in several data centres: run nodes, see their state, repair them, and import mail.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(package_name="mail-replicator", message="%(package)s %(version)s")(cli)
