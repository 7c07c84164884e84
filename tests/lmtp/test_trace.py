from itertools import cycle

from hypothesis import example, given
from hypothesis import strategies as st

from replicator.lmtp.trace import HEADER_BYTES_MAX, Top

LINES = st.sampled_from(
    [
        b"Return-Path: <old@x>\r\n",
        b"return-PATH :\r\n\t<older@x>\r\n",
        b"Message-ID: <1@x>\r\n",
        b"Message-Id:\r\n <2@x>\r\n",
        b"X: " + b"x" * 40_000 + b"\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b" folded\r\n",
    ]
)


def split_at_top(message: bytes, sizes: list[int]) -> tuple[bytes, str | None, int]:
    """Feed a message in such pieces. Return the stored body, the Message-ID, and how many bytes were held back."""
    top, size, at = Top(), cycle(sizes), 0
    while at < len(message):
        end = min(at + next(size), len(message))
        enough = top.add(message[at:end])
        at = end
        if enough:
            break
    return top.traced(b"ours\r\n") + message[at:], top.message_id(), at


@given(st.lists(LINES, max_size=6).map(b"".join), st.lists(st.integers(1, 30), min_size=1))
@example(b"Return-Path: <x>\r\nReturn-Path: <y>\r\n\r\nReturn-Path: <z>\r\n", [1])
@example(b"Message-ID: <1@x>\r\n" + b"x" * HEADER_BYTES_MAX, [1000])
@example(b"x" * (HEADER_BYTES_MAX - 10) + b"\r\nMessage-ID: <1@x>\r\n", [1000])
@example(b"Return-Path: <x>\r\n" * 8000, [30_000])
def test_result_does_not_depend_on_the_pieces_of_input(message: bytes, sizes: list[int]) -> None:
    body, found, waited = split_at_top(message, sizes)
    assert (body, found) == split_at_top(message, [max(1, len(message))])[:2]
    header, end, _ = message.partition(b"\r\n\r\n")
    assert waited < min(HEADER_BYTES_MAX, len(header + end)) + max(sizes)


def test_message_id_is_read_from_the_header_only() -> None:
    assert split_at_top(b"Subject: x\r\n\r\nMessage-ID: <1@x>\r\n", [1])[1] is None
    assert split_at_top(b"Subject: x\r\nMESSAGE-ID: <1@x>\r\n\r\n", [1])[1] == "<1@x>"
