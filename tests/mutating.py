"""Lines that change what they carry: `Mutator` single fields, so that valid commands become others; `Flipper` bits.

`commands` is for a simulated line, whose pieces are whole commands; `MutatedStream` is for a proxy, whose pieces may
cut commands anywhere. The dice alone decide what is changed. Compressed lines cannot be changed.
"""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator

from protocol.commands import Done, Ping, Save, SaveAll, Saved, Stored
from protocol.commands import EntryCommand as Change
from protocol.framing import Frame, Framer
from protocol.parser import ChangedError, Response, parse
from protocol.stream_codec import WIRE_LIMITS, ProtocolError, Request

IN_CLIENT_CHANGES = False
"""Permission to mutate more than the tag and the body of a client's change on its way to the master, and more than the
tag of its reply. Neither has a digest, so the master would make a wrong change, or the client hear a wrong reply."""

TRIES = 12  # for each command: many changes make it invalid
REMEMBERED = 256  # words that have crossed the line, as replacements for others
FAR = 1000  # above any number that a test counts up to

_WORD = re.compile(rb'[^\s(){}"]+')
_DOT = re.compile(rb"([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+):([0-9]+)\Z")
_HEX = re.compile(rb"[0-9a-f]{16,}\Z")
_LITERAL_MARKER = re.compile(rb"\{[0-9]+\+?\}\Z")


def whole(frame: Frame) -> bytes:
    """Return the octets of the frame on the wire."""
    first, *others = frame.text.split(b"\r\n")
    return (
        first
        + b"".join(b"\r\n" + literal + text for literal, text in zip(frame.literals, others, strict=True))
        + b"\r\n"
    )


class Mutator:
    """Change one field in a share `rate` of the commands. `counts`: number of changes, by command."""

    def __init__(self, dice: random.Random, rate: float) -> None:
        self.counts: Counter[str] = Counter()
        self._dice = dice
        self._rate = rate
        self._words: deque[bytes] = deque(maxlen=REMEMBERED)

    def commands(self, data: bytes) -> bytes:
        """Return the octets of whole commands, with changes."""
        framer = Framer(WIRE_LIMITS)
        framer.receive(data)
        return b"".join(map(self.frame, frames(framer)))

    def frame(self, frame: Frame) -> bytes:
        """Return the octets of one command, perhaps with a change."""
        self._words += _WORD.findall(frame.text[: 1 << 10])
        if self._dice.random() >= self.rate_of(frame):
            return whole(frame)
        item = parse(frame)
        if _is_beat(item) and self._dice.random() < 0.9:
            return whole(frame)
        for _ in range(TRIES):
            changed = self.changed(frame, item)
            if changed is not None and _is_another(changed, item):
                value = item.command if isinstance(item, Request) else item.reply
                self.counts[type(value).__name__] += 1
                return whole(changed)
        return whole(frame)

    def rate_of(self, frame: Frame) -> float:  # noqa: ARG002 - of a line, all alike
        """Return the share of commands like this one that are changed."""
        return self._rate

    def changed(self, frame: Frame, item: Request | Response) -> Frame | None:
        """Return a changed frame, which may be invalid. None: nothing may be changed there."""
        is_guarded = not IN_CLIENT_CHANGES and is_of_client(item)
        if frame.literals and frame.literals[0] and (not is_guarded or _has_body(item)) and self._dice.random() < 0.3:
            first, *others = frame.literals
            return Frame(frame.text, (self._other_bytes(first), *others))
        words = [word for word in _WORD.finditer(frame.text) if not _LITERAL_MARKER.match(word[0])]
        if is_guarded:
            words = words[:1]
        word = self._dice.choice(words)
        if word.start() == 0:  # a tag: never that of another request, whose client would get a wrong reply
            return None if word[0] == b"*" else self._with(frame, word, b"x" + word[0])
        if len(words) > 3 and self._dice.random() < 0.15:
            again = b"" if self._dice.random() < 0.5 else word[0] + b" " + word[0]
            return self._with(frame, word, again)
        return self._with(frame, word, self._other(word[0]))

    @staticmethod
    def _with(frame: Frame, word: re.Match[bytes], other: bytes) -> Frame:
        start, end = word.span()
        text = frame.text[:start] + other + frame.text[end:]
        return Frame(text if other else text[:start].rstrip(b" ") + text[start:], frame.literals)

    def _other(self, word: bytes) -> bytes:
        if word.isdigit():
            return self._other_number(word)
        if (dot := _DOT.match(word)) is not None:
            if self._dice.random() < 0.6:
                return dot[1] + b":" + self._other_number(dot[2])
            return self._other_word(dot[1]) + b":" + dot[2]
        if _HEX.match(word):
            return self._other_digit(word) if self._dice.random() < 0.6 else self._one_like(word)
        return self._other_word(word)

    def _other_number(self, word: bytes) -> bytes:
        number = int(word)
        return b"%d" % self._dice.choice(
            (number + 1, max(0, number - 1), number + 10, number * 10, number // 2, 0, number + FAR)
        )

    def _other_word(self, word: bytes) -> bytes:
        return self._one_like(word) if self._dice.random() < 0.6 else self._other_letter(word)

    def _one_like(self, word: bytes) -> bytes:
        """Return another word of this kind that has crossed the line, or else a changed word."""
        likes = sorted({_prefix(other) for other in self._words if _kind(_prefix(other)) == _kind(word)} - {word})
        return self._dice.choice(likes) if likes else self._other_letter(word)

    def _other_letter(self, word: bytes) -> bytes:
        at = self._dice.randrange(len(word))
        return word[:at] + bytes([self._dice.choice(b"abcxyz019")]) + word[at + 1 :]

    def _other_digit(self, word: bytes) -> bytes:
        at = self._dice.randrange(len(word))
        return word[:at] + bytes([self._dice.choice(b"0123456789abcdef")]) + word[at + 1 :]

    def _other_bytes(self, data: bytes) -> bytes:
        at = self._dice.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self._dice.randrange(8))]) + data[at + 1 :]


class Flipper(Mutator):
    """Flip bits anywhere in a share `rate` of the commands, so that most of them are commands no more.

    The octets of a client's change stay, and tags, for the reasons that `IN_CLIENT_CHANGES` gives.
    """

    def frame(self, frame: Frame) -> bytes:
        """Return the octets of one command, perhaps with flipped bits."""
        data = bytearray(whole(frame))
        if self._dice.random() >= self._rate:
            return bytes(data)
        item = parse(frame)
        if not IN_CLIENT_CHANGES and is_of_client(item):
            return bytes(data)
        after_tag = data.index(b" ")
        for _ in range(self._dice.choice((1, 1, 1, 2, 16))):
            data[self._dice.randrange(after_tag, len(data))] ^= 1 << self._dice.randrange(8)
        self.counts[type(item.command if isinstance(item, Request) else item.reply).__name__] += 1
        return bytes(data)


class MutatedStream:
    """One direction of a connection whose pieces cut commands anywhere. `change` returns the octets of a command."""

    def __init__(self, change: Callable[[Frame], bytes]) -> None:
        self._change = change
        self._framer = Framer(WIRE_LIMITS)

    def __call__(self, data: bytes) -> bytes:
        """Return the octets to forward now, which are whole commands."""
        self._framer.receive(data)
        return b"".join(map(self._change, frames(self._framer)))


def frames(framer: Framer) -> Iterator[Frame]:
    while (event := framer.next_event()) is not None:
        assert isinstance(event, Frame), "nodes do not ask for leave to send"
        yield event


def _is_another(frame: Frame, item: Request | Response) -> bool:
    try:
        return parse(frame) != item
    except ChangedError:  # a valid command except for its CHECK
        return True
    except ProtocolError:
        return False


def is_of_client(item: Request | Response) -> bool:
    """Return True for a client's change and for the reply to one."""
    if isinstance(item, Request):
        return item.tag is not None and isinstance(item.command, Change | SaveAll)
    return isinstance(item.reply, Saved | Stored) or (isinstance(item.reply, Done) and item.reply.dot is not None)


def _has_body(item: Request | Response) -> bool:
    """Return True if the literal is a body or a recipe, which the command's HASH protects."""
    return isinstance(item, Request) and isinstance(item.command, Save | SaveAll)


def _is_beat(item: Request | Response) -> bool:
    """Return True for a PING and its reply, which are most of what an idle line carries."""
    return item.command == Ping() if isinstance(item, Request) else item.reply == Done()


def _prefix(word: bytes) -> bytes:
    return word.partition(b":")[0]


def _kind(word: bytes) -> tuple[int, bool, bool]:
    return (len(word) if _HEX.match(word) else 0, b"." in word, word.isupper())
