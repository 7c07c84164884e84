from __future__ import annotations

import binascii
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.mime.base64_lines import LINE_MAX, Coding, Decoder
from tests.mime.messages import FRAGMENTS, LINE_ENDS, base64_texts, cuts


def decoded(pieces: Iterable[bytes]) -> tuple[Coding | None, bytes, bytes]:
    decoder = Decoder()
    results = [decoder.write(piece) for piece in pieces]
    results.append(decoder.finish())
    data, rest = b"".join(result.data for result in results), b"".join(result.rest for result in results)
    assert (decoder.coding is None) is (data == b"")
    assert decoder.has_ended
    return decoder.coding, data, rest


def encoded(coding: Coding | None, data: bytes, start: int, end: int) -> bytes:
    if coding is None:
        return b""
    first, behind = coding.source(len(data), start, end)
    return coding.encode(len(data), start, end, data[first:behind])


def written(data: bytes, width: int, end: bytes, *, is_closed: bool) -> bytes:
    text = binascii.b2a_base64(data, newline=False)
    width = width or len(text)
    return end.join(text[at : at + width] for at in range(0, len(text), width)) + (end if is_closed else b"")


@given(st.data(), st.one_of(base64_texts(), FRAGMENTS, st.binary()))
def test_decoded_octets_and_the_rest_reproduce_the_text(data: st.DataObject, text: bytes) -> None:
    found = decoded(data.draw(cuts(text)))
    assert found == decoded([text]) == decoded([text[at : at + 1] for at in range(len(text))])
    coding, content, rest = found
    length = coding.length(len(content)) if coding else 0
    assert encoded(coding, content, 0, length) + rest == text
    if coding is not None:
        assert coding.lines(len(content)) == text[:length].count(b"\n")
        assert rest == b"" or coding.is_closed or coding.width == 0


WIDTHS = st.one_of(st.just(0), st.integers(1, LINE_MAX // 4).map(lambda fours: 4 * fours))


@given(
    data=st.data(),
    content=st.binary(min_size=1, max_size=3000),
    width=WIDTHS,
    line_end=LINE_ENDS,
    is_closed=st.booleans(),
)
def test_any_range_of_valid_base64_is_reproduced(
    data: st.DataObject, content: bytes, width: int, line_end: bytes, *, is_closed: bool
) -> None:
    text = written(content, width, line_end, is_closed=is_closed)
    coding, found, rest = decoded(data.draw(cuts(text)))
    assert (found, rest) == (content, b"")
    assert coding is not None
    assert coding.is_closed is is_closed
    assert coding.length(len(content)) == len(text)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    assert encoded(coding, content, start, end) == text[start:end]
    first, behind = coding.source(len(content), start, end)
    row = coding.width or 1024
    assert behind - first <= (end - start + 2 * row) * 3 // 4 + 3


@pytest.mark.parametrize("size", [768, 1000, 1999, 2000])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n", b""])
def test_single_line_may_have_any_length(size: int, line_end: bytes) -> None:
    content = bytes(size)
    text = written(content, 0, line_end, is_closed=True)
    coding, *found = decoded([text[at : at + 1] for at in range(len(text))])
    assert (coding, found) == (Coding(0, line_end, is_closed=line_end != b""), [content, b""])
    for start in range(len(text) - 5, len(text)):
        assert encoded(coding, content, start, len(text)) == text[start:]


def test_lines_before_a_flaw_are_decoded() -> None:
    content = random.Random(1).randbytes(57 * 50)
    text = written(content, 76, b"\r\n", is_closed=True)
    for line in range(50):
        for flaw in (b" ", b"\n", b"-", b"=", b"\x00", b"\xff"):
            at = line * 78 + line
            broken = text[:at] + flaw + text[at + 1 :]
            coding, found, rest = decoded([broken])
            whole = content[: 57 * line] if line or at % 78 else b""
            assert (found, rest) == (whole, broken[78 * line :])
            assert coding == (Coding(76, b"\r\n", is_closed=True) if line else None)


@pytest.mark.parametrize(
    ("text", "found", "rest"),
    [
        (b"QUJD\r\nQUI=\r\n", b"ABCAB", b""),
        (b"QUJD\r\nQUI=", b"ABCAB", b""),
        (b"QUJD\r\nQUI=\r\n\r\n", b"ABCAB", b"\r\n"),
        (b"QUJD\r\nQUI=\r\nQUJD\r\n", b"ABCAB", b"QUJD\r\n"),
        (b"QUJDQUJD\r\nQUJD\r\nQUJD\r\n", b"ABCABCABC", b"QUJD\r\n"),  # a short line is the last one
        (b"QUJD\r\nQUJDQUJD\r\n", b"ABC", b"QUJDQUJD\r\n"),  # a longer line than the first
        (b"QUJD\r\nQUJ=\r\n", b"ABC", b"QUJ=\r\n"),  # bits in the padding
        (b"QUJD\r\nQR==", b"ABC", b"QR=="),
        (b"QUJD\r\nQUI\r\n", b"ABC", b"QUI\r\n"),  # no padding
        (b"QUJD\r\nQQ\r\n", b"ABC", b"QQ\r\n"),
        (b"QUJD\r\nQQ==QUJD\r\n", b"ABC", b"QQ==QUJD\r\n"),
        (b"QUJD\r\nQUJD\nQUJD\r\n", b"ABC", b"QUJD\nQUJD\r\n"),
        (b"QUJD\nQUJD\r\n", b"ABC", b"QUJD\r\n"),
        (b"QUJD\r\n\r\nQUJD\r\n", b"ABC", b"\r\nQUJD\r\n"),
        (b"QUJD\r\nQUI= \r\n", b"ABC", b"QUI= \r\n"),
        (b"QU-_\r\n", b"", b"QU-_\r\n"),
        (b" QUJD\r\n", b"", b" QUJD\r\n"),
        (b"QUJD \r\n", b"", b"QUJD \r\n"),
        (b"\r\nQUJD\r\n", b"", b"\r\nQUJD\r\n"),
        (b"QUJD\rQUJD", b"ABC", b"\rQUJD"),
        (b"QUJD\r", b"ABC", b"\r"),
        (b"QQ==\r\n", b"A", b""),
        (b"QQ==", b"A", b""),
        (b"QQ==QUJD", b"", b"QQ==QUJD"),
        (b"QQ", b"", b"QQ"),
        (b"====", b"", b"===="),
        (b"\r\n", b"", b"\r\n"),
        (b"", b"", b""),
    ],
)
def test_flaws_end_the_decoding(text: bytes, found: bytes, rest: bytes) -> None:
    for pieces in ([text], [text[at : at + 1] for at in range(len(text))]):
        coding, *octets = decoded(pieces)
        assert octets == [found, rest]
        length = coding.length(len(found)) if coding else 0
        assert encoded(coding, found, 0, length) + rest == text


def test_lines_up_to_the_limit_of_mail_are_decoded() -> None:
    content = bytes(3000)
    for width, is_whole in ((LINE_MAX, True), (LINE_MAX + 4, False)):
        coding, found, _ = decoded([written(content, width, b"\r\n", is_closed=True)])
        assert coding is not None
        assert (found == content) is is_whole


@pytest.mark.parametrize(
    ("width", "line_end", "is_closed"),
    [
        (3, b"\n", True),
        (-4, b"\n", True),
        (LINE_MAX + 4, b"\n", True),
        (4, b"\r", True),
        (4, b"", True),
        (4, b"", False),
        (0, b"", True),
        (0, b"\n", False),
    ],
)
def test_invalid_codings_are_refused(width: int, line_end: bytes, *, is_closed: bool) -> None:
    with pytest.raises(ValueError, match="line"):
        Coding(width, line_end, is_closed)
