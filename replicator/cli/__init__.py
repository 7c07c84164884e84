"""The command line: one module per command, loaded when the command is used.

Commands find a node by `--config` or `--url` (`target`), talk to it through its JSON API (`client`), and end with exit
code 0 (done), 1 (the operation failed) or 2 (wrong usage or configuration). Errors are one line on standard error that
says what failed, where, and what to do. This module imports almost nothing, so that `main` catches early interrupts.
"""

from __future__ import annotations

import os
import sys

FAILED_EXIT_CODE = 1


def main() -> None:
    """Run the command line of this process, and exit. An interrupt at any time ends it with one line."""
    os.umask(0o077)  # what commands create is for their user alone, see `runtime/file_modes`; a node may change this
    try:
        import signal  # noqa: PLC0415  takes long enough to be interrupted

        from replicator.cli.command_list import cli  # noqa: PLC0415  the same, and longer

        try:
            cli.main(prog_name="replicator")
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the exit is left, and its code is known
    except KeyboardInterrupt:  # before click was there to do the same
        sys.stderr.write("\nAborted!\n")
        sys.exit(FAILED_EXIT_CODE)
