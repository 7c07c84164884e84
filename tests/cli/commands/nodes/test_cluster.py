"""Messages of `cluster run` to its user."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from replicator.cli.commands.nodes.cluster import _node_table
from replicator.cli.processes.cluster_files import prepare
from replicator.cli.processes.cluster_processes import NodeProcess


def test_long_paths_hide_no_other_column_of_the_nodes(tmp_path: Path) -> None:
    nodes = prepare(tmp_path / ("long" * 40), 2)
    out = Console(width=80)
    with out.capture() as captured:
        out.print(_node_table(nodes, [NodeProcess(node, (), print) for node in nodes]))
    cells = captured.get().split()
    for node in nodes:
        assert node.config.listen.imap is not None
        assert {node.sid, str(node.config.listen.imap.port), "(stopped)"} <= set(cells)
        assert str(node.file) in "".join(cells)
