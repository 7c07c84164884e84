"""Generated messages, valid and malformed in every way that matters to the splitter."""

from __future__ import annotations

import binascii

from hypothesis import strategies as st

LINE_ENDS = st.sampled_from([b"\r\n", b"\n"])
ODD_LINE_ENDS = st.sampled_from([b"\r\n", b"\n", b"\r\r\n"])
BOUNDARIES = st.sampled_from(
    [b"b", b"bb", b"b--", b"b-", b"--", b"b b", b"QUJD", b"x" * 70, b"b" * 1000, b"b" * 1001, b""]
)

_FLAWS = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"=",
    b"==",
    b"!",
    b"-",
    b"--",
    b"QR==",
    b"QQ==",
    b"QUI=",
    b"QUJD",
    b"\r\n\r\n",
    b"\xff",
]
_FRAGMENTS = [
    b"--b",
    b"--",
    b"-",
    b"b",
    b"--bb--",
    b"--b--",
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"\r\n",
    b"a: b",
    b"QUJD",
    b"x" * 80,
]
FRAGMENTS = st.lists(st.one_of(st.sampled_from(_FRAGMENTS), st.binary(max_size=5)), max_size=30).map(b"".join)

CONTENT_TYPES = [b"text/plain", b"application/octet-stream", b"text", b"message/rfc822", b"message/delivery-status"]


@st.composite
def base64_texts(draw: st.DrawFn) -> bytes:
    """Generate base64 that is valid, or has flaws anywhere."""
    data = draw(
        st.one_of(st.binary(max_size=40), st.integers(0, 400).map(lambda size: bytes(i * 7 % 256 for i in range(size))))
    )
    text = binascii.b2a_base64(data, newline=False)
    width, end = draw(st.sampled_from([4, 8, 12, 20, 76, 7, 400, 996])), draw(ODD_LINE_ENDS)
    lines = end.join(text[at : at + width] for at in range(0, len(text), width)) + draw(
        st.sampled_from([b"", end, b"\n", end + end])
    )
    for _ in range(draw(st.integers(0, 2))):
        at, gone = draw(st.integers(0, len(lines))), draw(st.integers(0, 3))
        lines = lines[:at] + draw(st.sampled_from(_FLAWS)) + lines[at + gone :]
    return lines


CONTENTS = st.one_of(FRAGMENTS, base64_texts())


@st.composite
def headers(draw: st.DrawFn, content_type: bytes, *, is_whole: bool = False) -> bytes:
    end = draw(ODD_LINE_ENDS)
    lines = [b"Content-Type: " + content_type] if content_type else []
    if draw(st.booleans()):
        lines.append(b"Content-Transfer-Encoding: " + draw(st.sampled_from([b"base64", b"BASE64 (x)", b"8bit"])))
    lines += draw(
        st.lists(st.sampled_from([b"Subject: x", b"X: y" + end + b" z", b"X-Long: " + b"y" * 60]), max_size=2)
    )
    lines = draw(st.permutations(lines))
    if not is_whole and draw(st.integers(0, 15)) == 0:
        lines.insert(
            draw(st.integers(0, len(lines))), draw(st.sampled_from([b"junk", b"--b", b" folded", b"--", b"From x"]))
        )
    header = b"".join(line + end for line in lines)
    return header + (end if is_whole or draw(st.integers(0, 15)) else b"")


@st.composite
def leaves(draw: st.DrawFn) -> bytes:
    header = draw(headers(draw(st.sampled_from([*CONTENT_TYPES[:3], b""]))))
    return header + draw(base64_texts() if b"base64" in header.lower() and draw(st.integers(0, 3)) else CONTENTS)


@st.composite
def multiparts(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    boundary, end = draw(BOUNDARIES), draw(ODD_LINE_ENDS)
    declared = draw(BOUNDARIES) if draw(st.integers(0, 9)) == 0 else boundary
    kind = draw(st.sampled_from([b"mixed", b"digest", b"alternative"]))
    message = draw(headers(b'multipart/%b; boundary="%b"' % (kind, declared)))
    message += draw(FRAGMENTS) if draw(st.integers(0, 3)) == 0 else b""
    for part in draw(st.lists(inner, max_size=3)):
        before = draw(st.sampled_from([end, end, b"", b"\n"]))
        message += before + b"--" + boundary + draw(st.sampled_from([b"", b"", b"", b" ", b"\t \t", b"x"])) + end + part
    message += draw(st.sampled_from([end + b"--" + boundary + b"--" + end, end + b"--" + boundary + b"--", end, b""]))
    return message + (draw(FRAGMENTS) if draw(st.integers(0, 3)) == 0 else b"")


@st.composite
def nested(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    return draw(headers(b"message/rfc822")) + draw(inner)


def _around(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(multiparts(inner), multiparts(inner), nested(inner))


MESSAGES = st.recursive(leaves(), _around, max_leaves=6)
"""Whole messages."""


@st.composite
def cuts(draw: st.DrawFn, octets: bytes) -> list[bytes]:
    """Cut octets into pieces of any sizes."""
    places = sorted(draw(st.lists(st.integers(0, len(octets)), max_size=8)))
    return [octets[start:end] for start, end in zip([0, *places], [*places, len(octets)], strict=True)]
