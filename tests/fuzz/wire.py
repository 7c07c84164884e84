"""Input of a peer on a link: frames, commands and replies, plain and compressed.

A peer that lies sends right checks with what it makes up, so wrong checks are put right here.
"""

from __future__ import annotations

import zstandard

from protocol.checksum import check_of
from protocol.framing import Frame, FrameLimits, Framer, FramingError
from protocol.parser import ChangedError, parse
from protocol.stream_codec import Decoder, Encoder, Item, ProtocolError, Request, Response
from tests.fuzz.target import Target, pieces_of
from tests.protocol.document import example_frames

LIMITS = FrameLimits(text=2048, literal=1024, literals_total=1024, literals=4)


def check(data: bytes) -> None:
    """Decode the octets whole, in pieces and compressed, to the same items; format each item and read it again."""
    whole, pieces = pieces_of(data)
    read = decoded(Decoder(LIMITS), [whole])
    assert decoded(Decoder(LIMITS), pieces) == read
    compressor = zstandard.ZstdCompressor().compressobj()
    compressed = [compressor.compress(piece) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for piece in pieces]
    assert decoded(compressed_decoder(), compressed) == read
    decoded(compressed_decoder(), pieces)
    for item in read[0]:
        if isinstance(item, Request | Response):
            assert_formats(item)
    for frame in frames_of(whole):
        try:
            parse(frame)
        except ChangedError:
            assert_formats(parse(with_right_check(frame)))
        except ProtocolError as error:
            assert_is_clear(error)


def compressed_decoder() -> Decoder:
    decoder = Decoder(LIMITS)
    decoder.start_decompression()
    return decoder


def decoded(decoder: Decoder, pieces: list[bytes]) -> tuple[list[Item], str | None]:
    """Return the items, and the error that ended them. Once there is one, every later call raises it."""
    items: list[Item] = []
    try:
        for piece in pieces:
            for item in decoder.feed(piece):
                items.append(item)  # noqa: PERF402 - those before an error count
    except ProtocolError as error:
        assert_is_clear(error)
        return items, str(error)
    return items, None


def frames_of(data: bytes) -> list[Frame]:
    framer, frames = Framer(LIMITS), []
    framer.receive(data)
    try:
        while (event := framer.next_event()) is not None:
            if isinstance(event, Frame):
                frames.append(event)
    except FramingError:
        pass
    return frames


def with_right_check(frame: Frame) -> Frame:
    said, _, _ = frame.text.rpartition(b" CHECK ")
    return Frame(said + b" CHECK " + check_of(said, frame.literals).hex().encode(), frame.literals)


def assert_formats(item: Request | Response) -> None:
    [again] = Decoder().feed(Encoder().batch([item]))
    assert again == item
    assert repr(again) == repr(item)


def assert_is_clear(error: ProtocolError) -> None:
    assert str(error).isprintable(), repr(error)
    assert len(str(error)) < 1000


TARGET = Target(
    "wire",
    check,
    seeds=tuple(b"\x07" + frame for frame in example_frames()),
    words=(
        *(
            b" ",
            b"\r\n",
            b"(",
            b")",
            b'"',
            b"\\",
            b"NIL",
            b"*",
            b"a1 ",
            b"OK ",
            b"NO ",
            b"{3+}\r\n",
            b"{3}\r\n",
            b"{0+}\r\n",
        ),
        *(b"CHECK " + b"0" * 32, b"0" * 32, b"a" * 64, b"9" * 19, b"4294967295", b"dc1.b:9", b"1:3,5", b"\xff", b"\0"),
        *(
            b"HELLO ",
            b"PING",
            b"LINKS ",
            b"ROOT ",
            b"WHO ",
            b"MBOX ",
            b"SAVE ",
            b"COPY ",
            b"STORE ",
            b"EXPUNGE ",
            b"ENTRY ",
        ),
        *(
            b"MERGE ",
            b"REMOTE ",
            b"SYNC ",
            b"RANGES ",
            b"ROWS ",
            b"FETCH ",
            b"LOG ",
            b"ACK ",
            b"SETTLED ",
            b"OFFER ",
            b"ENTRIES ",
        ),
    ),
)
