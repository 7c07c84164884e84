from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.stream_codec import Decoder, Encoder, Item, Request, Response
from tests.effort import examples
from tests.protocol import strategies


def cut_at(data: bytes, places: list[float]) -> list[bytes]:
    edges = [0, *sorted(int(place * len(data)) for place in places), len(data)]
    return [data[low:high] for low, high in pairwise(edges)]


def decode(decoder: Decoder, pieces: list[bytes]) -> list[Item]:
    return [item for piece in pieces for item in decoder.feed(piece)]


@pytest.mark.parametrize("kind", strategies.COMMANDS, ids=lambda kind: kind.__name__)
@settings(max_examples=examples(20, 40))
@given(data=st.data())
def test_every_command_is_parsed_as_it_was_formatted(kind: type, data: st.DataObject) -> None:
    request = data.draw(st.builds(Request, st.none() | strategies.tags, strategies.of_class(kind)))
    assert list(Decoder().feed(Encoder().batch([request]))) == [request]


@pytest.mark.parametrize("kind", strategies.REPLIES, ids=lambda kind: kind.__name__)
@settings(max_examples=examples(20, 40))
@given(data=st.data())
def test_every_reply_is_parsed_as_it_was_formatted(kind: type, data: st.DataObject) -> None:
    response = data.draw(st.builds(Response, strategies.tags, strategies.of_class(kind)))
    assert list(Decoder().feed(Encoder().batch([response]))) == [response]


@settings(max_examples=examples(30, 60))
@given(st.lists(strategies.items, max_size=5), st.lists(st.floats(0, 1), max_size=12), st.booleans(), st.booleans())
def test_items_do_not_depend_on_cuts_and_compression(
    items: list[Request | Response],
    places: list[float],
    compressed: bool,  # noqa: FBT001 - drawn
    one_flush: bool,  # noqa: FBT001 - drawn
) -> None:
    encoder, whole, by_byte, cut = Encoder(), Decoder(), Decoder(), Decoder()
    if compressed:
        encoder.start_compression()
        for decoder in (whole, by_byte, cut):
            decoder.start_decompression()
    data = encoder.batch(items) if one_flush else b"".join([encoder.batch([item]) for item in items])
    assert decode(whole, [data]) == items
    assert decode(by_byte, [bytes([byte]) for byte in data]) == items
    assert decode(cut, cut_at(data, places)) == items


@settings(max_examples=examples(20, 40))
@given(strategies.items)
def test_decoded_values_have_the_types_of_the_encoded_ones(item: Request | Response) -> None:
    [again] = Decoder().feed(Encoder().batch([item]))
    assert repr(again) == repr(item)  # a lark Token, which is a str, prints differently


def test_store_of_an_older_node_is_read_without_its_modseq() -> None:
    """Nodes used to name the highest MODSEQ that they had seen, which no master needs."""
    old = rb"b8 STORE 9 1:12 ADD (\Seen) REMOVE () SEEN 17 UNCHANGEDSINCE 40 HEAD dc1.4a7d:81" + b"\r\n"
    assert list(Decoder().feed(old)) == list(Decoder().feed(old.replace(b"SEEN 17 ", b"")))
