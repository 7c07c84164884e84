"""Texts of mails and attributes on the wire: line ends, and the dots that mark the end (as RFC 5321 section 4.5.2).

A dot at the beginning of a text or after LF is doubled; CR LF "." CR LF ends the text, and its first CR LF is no part
of it. Dovecot sends lines as it stores them, with or without CR; here they end in CR LF.
"""

from __future__ import annotations

END = b"\r\n.\r\n"


class StreamEncoder:
    """Encoder of one text, piece by piece."""

    def __init__(self) -> None:
        self._after_lf = True

    def encode(self, data: bytes) -> bytes:
        """Return the next piece with its dots doubled."""
        if not data:
            return b""
        doubled = data.replace(b"\n.", b"\n..")
        if self._after_lf and data.startswith(b"."):
            doubled = b"." + doubled
        self._after_lf = data.endswith(b"\n")
        return doubled


class StreamDecoder:
    """Decoder of one text. Feed it with `receive`, which returns what of the text is certain.

    It holds back a few bytes at most. `rest` has what follows the end, once it has come.
    """

    def __init__(self) -> None:
        self._raw = b""
        self._after_lf = True
        self._lines = _LineEnds()
        self.rest: bytes | None = None

    def receive(self, data: bytes) -> bytes:
        """Take the next bytes, and return the next piece of the text."""
        raw = self._raw + data
        end = raw.find(END)
        if end >= 0:
            self._raw, self.rest = b"", raw[end + len(END) :]
            return self._lines.convert(self._undotted(raw[:end])) + self._lines.finish()
        cut = max(0, len(raw) - len(END) + 1)
        if raw[:cut].endswith(b"\n.") or (cut == 1 and self._after_lf and raw.startswith(b".")):
            cut -= 1  # the next byte may be the dot's double
        self._raw = raw[cut:]
        return self._lines.convert(self._undotted(raw[:cut]))

    def _undotted(self, raw: bytes) -> bytes:
        """Return the text of whole pairs of dots. A single dot at the beginning is Dovecot's before 2.4.5."""
        if not raw:
            return raw
        text = raw.replace(b"\n..", b"\n.")
        if self._after_lf and raw.startswith(b".."):
            text = text[1:]
        self._after_lf = raw.endswith(b"\n")
        return text


class _LineEnds:
    """Converter of line ends to CR LF. A lone CR stays."""

    def __init__(self) -> None:
        self._held = b""

    def convert(self, data: bytes) -> bytes:
        data = self._held + data
        self._held = b"\r" if data.endswith(b"\r") else b""
        if self._held:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")

    def finish(self) -> bytes:
        held, self._held = self._held, b""
        return held
