"""Format commands and replies as bytes by `protocol.lark`, with one module for each of the grammar's sections.

Every value is checked against the grammar's own terminals and the parser's limits before it goes out. A value that
cannot be expressed is a mistake of this node: it raises ValueError here and never reaches a peer.
"""

from __future__ import annotations

from protocol.checksum import CHECKED, check_of
from protocol.commands import Refused
from protocol.formatter import (  # noqa: F401 - each tells `form` of its classes
    catching_up,
    links,
    mailboxes,
    masters,
    replies,
)
from protocol.formatter.values import form, match
from protocol.framing import FrameLimits
from protocol.parser import WIRE_LIMITS, Request, Response

__all__ = ["format_item"]


def format_item(item: Request | Response, limits: FrameLimits = WIRE_LIMITS) -> bytes:
    """Return the item as one frame with its CRLF.

    Raises ValueError if a value cannot be expressed or the frame is too large.
    """
    if isinstance(item, Request):
        fields = form(item.command)
        line = "*" if item.tag is None else match("TAG", item.tag)
    else:
        fields = ["NO"] if isinstance(item.reply, Refused) else ["OK"]
        fields += form(item.reply)
        line = match("TAG", item.tag)
    pieces: list[bytes] = []
    for field in fields:
        if isinstance(field, str):
            line += " " + field
        else:
            pieces += (f"{line} {{{len(field)}+}}\r\n".encode("ascii"), field)
            line = ""
    if isinstance(item.command if isinstance(item, Request) else item.reply, CHECKED):
        text = b"".join(pieces[::2]) + line.encode("ascii")
        line += f" CHECK {check_of(text, pieces[1::2]).hex()}"
    pieces.append(f"{line}\r\n".encode("ascii"))
    _check_limits(pieces, limits)
    return b"".join(pieces)


def _check_limits(pieces: list[bytes], limits: FrameLimits) -> None:
    """Raise ValueError if a reader with these limits would refuse the frame. `pieces` alternate texts and literals."""
    literals = [len(literal) for literal in pieces[1::2]]
    if sum(map(len, pieces[::2])) - len(b"\r\n") > limits.text:
        raise ValueError(f"the text of {pieces[0][:32]!r} is longer than {limits.text} bytes")
    if literals and (max(literals) > limits.literal or sum(literals) > limits.literals_total):
        raise ValueError(f"{pieces[0][:32]!r} has literals of {literals} bytes; the limit is {limits.literal}")
