"""Header fields by name: found by one pass over the header, however many items and keys ask for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.rendering.fetch_answers import ParsedBody, section
from replicator.imap.wire.fetch_items import BodySection, SectionText
from replicator.mime import header as header_module
from replicator.mime.header import Header
from replicator.mime.skeleton import Skeleton

NAMES = ["To", "TO", "to", "X-A", "x-a", "Subject", "", "Received"]


@dataclass(frozen=True)
class Field:
    name: str  # empty: the line that begins a message in an mbox file
    lines: list[str]

    @property
    def octets(self) -> bytes:
        start = f"{self.name}:" if self.name else "From "
        return (start + "\r\n ".join(self.lines) + "\r\n").encode()

    @property
    def value(self) -> bytes:
        return " ".join(self.lines).strip(" \t").encode()


texts = st.text("ab :\t", min_size=1, max_size=5).map(lambda text: text + ".")
fields = st.lists(st.builds(Field, st.sampled_from(NAMES), st.lists(texts, min_size=1, max_size=3)), max_size=8)


@given(fields, st.sets(st.sampled_from([*NAMES, "None"]).filter(bool), min_size=1, max_size=4))
def test_fields_are_chosen_as_by_comparing_each_name(fields: list[Field], names: set[str]) -> None:
    body = ParsedBody(Skeleton(b"".join(one.octets for one in fields) + b"\r\nbody\r\n"))
    wanted = {name.lower() for name in names}
    for text, others in ((SectionText.HEADER_FIELDS, False), (SectionText.HEADER_FIELDS_NOT, True)):
        chosen = [one.octets for one in fields if (one.name.lower() in wanted) is not others]
        assert section(body, BodySection(text=text, fields=tuple(names))) == b"".join(chosen) + b"\r\n"
    for name in wanted:
        values = [one.value for one in fields if one.name.lower() == name]
        assert list(body.header.values(name.encode())) == values
        assert body.header.value(name.encode()) == (values[0] if values else None)


@dataclass
class CountingPattern:
    """The pattern of a header field, which counts the fields that it finds."""

    pattern: re.Pattern[bytes]
    found: list[bytes] = field(default_factory=list)

    def finditer(self, *where: object) -> Iterator[re.Match[bytes]]:
        for match in self.pattern.finditer(*where):  # type: ignore[call-overload]
            self.found.append(match[0])
            yield match


def test_header_is_parsed_once_for_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = CountingPattern(header_module._FIELD_PATTERN)
    monkeypatch.setattr(header_module, "_FIELD_PATTERN", counting)
    raw = b"".join(b"A%d: x\r\n" % number for number in range(1000)) + b"\r\n"
    body = ParsedBody(Skeleton(raw))
    for number in range(100):
        item = BodySection(text=SectionText.HEADER_FIELDS, fields=(f"a{number}",))
        assert section(body, item) == b"A%d: x\r\n\r\n" % number
        assert list(Header.values(body.header, b"a%d" % number)) == [b"x"]
    assert len(counting.found) == 1000
