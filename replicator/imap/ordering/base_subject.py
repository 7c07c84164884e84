"""Base subjects (RFC 5256 section 2.1): subjects without what replies and forwards add."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_SUBJECT = 1000  # characters; the rest of a subject is ignored

_SPACES = re.compile(r"[ \t\r\n]+")
_TRAILER = re.compile(r"(?: |\(fwd\))+\Z", re.IGNORECASE)
_BLOB = r"\[[^\[\]]*\] *"
_BLOBS = re.compile(rf"(?:{_BLOB})*")
_REFWD = re.compile(rf"(?:re|fwd?) *(?:{_BLOB})?: *", re.IGNORECASE)
_LAST_BLOB = re.compile(r"\[[^\[\]]*\] *\Z")
_FORWARDED = re.compile(r"\[fwd:(.*)\]", re.IGNORECASE)


class BaseSubject(NamedTuple):
    """A base subject, and whether the subject is one of a reply or a forward (RFC 5256 section 3)."""

    text: str
    is_reply: bool


def base_subject(subject: str) -> BaseSubject:
    """Return the base subject of a decoded, unfolded subject. The steps are those of the RFC."""
    text = _SPACES.sub(" ", subject[:MAX_SUBJECT])  # (1)
    is_reply = False
    while True:
        trailer = _TRAILER.search(text)  # (2)
        if trailer is not None:
            is_reply = is_reply or "(" in trailer[0]
            text = text[: trailer.start()]
        text, replied = _without_leaders(text)
        is_reply = is_reply or replied
        if (forwarded := _FORWARDED.fullmatch(text)) is None:  # (6)
            return BaseSubject(text, is_reply)
        text, is_reply = forwarded[1], True


def _without_leaders(text: str) -> tuple[str, bool]:
    """Remove leaders, and blobs unless nothing would be left: steps (3) to (5). Return True if there was a reply."""
    text, replied = text.lstrip(" "), False
    while True:
        blobs = _BLOBS.match(text)
        assert blobs is not None, "it may be empty"
        refwd = _REFWD.match(text, blobs.end())
        if refwd is None:
            break
        text, replied = text[refwd.end() :], True
    if blobs.end() < len(text):
        return text[blobs.end() :], replied
    last = _LAST_BLOB.search(text)
    return ("" if last is None else text[last.start() :]), replied
