"""The command line: one module a command, loaded when the command is used.

Commands find a node by `--config` or `--url` (`target`), talk to it by its JSON API (`client`), and end with exit
code 0 (done), 1 (what was asked for failed) or 2 (wrong usage or configuration). Errors are one line on standard
error: what, where, what to do.
"""

import click

from replicator.cli.group import LazyGroup

COMMANDS = {
    "check": "replicator.cli.check:check",
    "checkpoint": "replicator.cli.checkpoint:checkpoint",
    "cluster": "replicator.cli.cluster:cluster",
    "import": "replicator.cli.import_mail:import_mail",
    "master": "replicator.cli.master:master",
    "node": "replicator.cli.node:node",
    "rebuild": "replicator.cli.rebuild:rebuild",
    "resync": "replicator.cli.resync:resync",
    "scrub": "replicator.cli.check:scrub",
    "status": "replicator.cli.status:status",
    "user": "replicator.cli.user:user",
}

cli = LazyGroup(
    name="replicator",
    commands_at=COMMANDS,
    about="Mail in several data centres, the same everywhere: run nodes, see how they are, bring mail in.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(package_name="mail-replicator", message="%(package)s %(version)s")(cli)


def main() -> None:
    """Run the command line of this process, and exit."""
    cli.main(prog_name="replicator")
