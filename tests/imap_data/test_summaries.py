"""FETCH responses that rows and outlines tell, held against the general form of FETCH responses."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot
from replicator.imap.rendering.fetch_answers import fetch_value
from replicator.imap.rendering.summaries import Summaries
from replicator.imap.wire.fetch_items import (
    Attribute,
    BodySection,
    Printed,
    SectionText,
    Value,
    needs_body,
    response_name,
)
from replicator.imap.wire.responses import FlagFormatter, fetch_response, without_body
from replicator.mail.view import Message
from tests.effort import examples

OUTLINED_ITEMS = [Attribute.ENVELOPE, Attribute.PREVIEW_LAZY, BodySection((), SectionText.HEADER_FIELDS, ("X%d",))]
ROW_ITEMS = [item for item in Attribute if not needs_body(item) and item not in OUTLINED_ITEMS]

texts = st.lists(st.binary(max_size=5), min_size=len(OUTLINED_ITEMS), max_size=len(OUTLINED_ITEMS))

rows = st.builds(
    Message,
    uid=st.integers(1, 2**32 - 1),
    guid=st.binary(min_size=16, max_size=16),
    modseq=st.integers(1, 2**63 - 1),
    flags=st.frozensets(st.sampled_from(["\\Seen", "\\Flagged", "$Junk", "100%b", "%d"])),
    received_ms=st.integers(-(2**62), 2**62),
    size_bytes=st.integers(0, 2**40),
    content_hash=st.just(b"h" * 32),
    dot=st.just(Dot("dc1.1", 1)),
    change=st.just(0),
    saved_ms=st.none() | st.integers(0, 2**47),
)


@settings(max_examples=examples(50, 300))
@given(
    st.lists(st.tuples(st.integers(1, 2**32 - 1), rows, texts), max_size=3),
    st.lists(st.sampled_from([*ROW_ITEMS, *OUTLINED_ITEMS]), min_size=1, unique=True),
)
def test_listings_are_fetch_responses(
    found: list[tuple[int, Message, list[bytes]]], chosen: list[Attribute | BodySection]
) -> None:
    flags = FlagFormatter()
    items = [(response_name(item).encode(), item) for item in chosen]
    summaries = Summaries(items, lambda messages: [flags(message.flags).encode() for message in messages])
    expected = b""
    for number, row, told in found:
        values: list[tuple[bytes, Value]] = []
        for name, item in items:
            if item in summaries.outlined:
                values.append((name, Printed((told[summaries.outlined.index(item)],))))
            else:
                values.append((name, flags(row.flags) if item is Attribute.FLAGS else fetch_value(item, row, None)))
        expected += b"".join(without_body(fetch_response(number, values)))
    columns = [[told[at] for _, _, told in found] for at in range(len(summaries.outlined))]
    assert summaries.responses([number for number, _, _ in found], [row for _, row, _ in found], columns) == expected
