"""FETCH responses that a message's row tells, held against the general form of FETCH responses."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot
from replicator.imap.rendering.fetch_answers import fetch_value
from replicator.imap.rendering.row_answers import row_answer
from replicator.imap.wire.fetch_items import Attribute, needs_body, response_name
from replicator.imap.wire.responses import FlagFormatter, fetch_response, without_body
from replicator.view import Message
from tests.effort import examples

ROW_ITEMS = [item for item in Attribute if not needs_body(item)]

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
@given(st.integers(1, 2**32 - 1), rows, st.lists(st.sampled_from(ROW_ITEMS), min_size=1, unique=True))
def test_row_answers_are_fetch_responses(number: int, row: Message, chosen: list[Attribute]) -> None:
    flags = FlagFormatter()
    items = [(response_name(item).encode(), item) for item in chosen]
    values = [
        (name, flags(row.flags) if item is Attribute.FLAGS else fetch_value(item, row, None)) for name, item in items
    ]
    answer = row_answer(items, lambda message: flags(message.flags).encode())
    assert answer(number, row) == b"".join(without_body(fetch_response(number, values)))
