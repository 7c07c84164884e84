import re
from typing import get_args

from protocol import commands as c
from protocol import parser
from protocol.stream_codec import Decoder, Encoder, Request, Response
from tests.protocol.document import DOCUMENT, example_frames


def test_examples_are_valid_and_cover_all_commands() -> None:
    kinds = set()
    for data in example_frames():
        [item] = Decoder().feed(data)
        assert isinstance(item, Request | Response)
        assert Encoder().batch([item]) == data
        kinds.add(type(item.command if isinstance(item, Request) else item.reply))
    assert kinds == set(get_args(c.Command)) | set(get_args(c.Reply))


def test_documented_limits_are_those_of_the_code() -> None:
    table = DOCUMENT[DOCUMENT.index("## Limits") : DOCUMENT.index("## Errors")]
    stated = [int(number) for number in re.findall(r"^\|[^|]+\| (\d+)", table, re.MULTILINE)]
    limits = parser.WIRE_LIMITS
    assert stated == [
        limits.text,
        limits.literal,
        limits.literals_total,
        limits.literals,
        parser.LIST_MAX,
        parser.TEXT_MAX,
        parser.UID_SET_MAX,
    ]
