"""Filters of LDAP for a user's name. No I/O."""

from __future__ import annotations

import re

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@.-_+ ")
_VARIABLE = re.compile("%([und])")


def filter_for(template: str, name: str) -> str:
    """Return the filter for a name: `%u` stands for all of it, `%n` and `%d` for what is before and after its `@`."""
    local, at, domain = name.rpartition("@")
    parts = {"u": name, "n": local if at else name, "d": domain if at else ""}
    return _VARIABLE.sub(lambda variable: escaped(parts[variable[1]]), template)


def escaped(value: str) -> str:
    r"""Return a value as a filter has it: each octet that is not plainly itself as `\XX` (RFC 4515 section 3)."""
    return "".join(chr(octet) if octet in _SAFE else f"\\{octet:02x}" for octet in value.encode("utf-8", "replace"))
