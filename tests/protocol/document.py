"""The examples of docs/protocol.md, as octets."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")


def example_frames() -> list[bytes]:
    """Return all frames of the examples, each literal with the line that announces it."""
    found: list[bytes] = []
    for block in re.findall(r"```wire\n(.*?)```", DOCUMENT, re.DOTALL):
        for frame in re.split(r"^dc\d: ", block, flags=re.MULTILINE)[1:]:
            text = re.sub("^ {5}", "", frame, flags=re.MULTILINE).replace("\n", "\r\n")
            found.append(re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), text.encode()))
    return found
