"""Server responses as bytes (RFC 3501 section 7). Pure functions.

Lines end in CRLF. Human-readable text is our own ASCII. Strings are quoted where possible and literals where necessary.
A FETCH response is a list of chunks, so that larger message contents are not copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from protocol.units import KIB
from protocol.values import UidSet
from replicator.imap.wire.fetch_items import Adjacent, Atom, Chunk, Decoded, Printed, Span, Value
from replicator.imap.wire.mailbox_names import encode_name
from replicator.imap.wire.search_keys import ReturnOption, Returns
from replicator.mail.flags import RECENT, SYSTEM_FLAGS, shown_once
from replicator.mail.mailstore import SEPARATOR

_LARGE_CHUNK = 16 * KIB
"""Size from which a chunk is passed on as it is; smaller ones cost less to copy than to handle singly."""

_CACHED_FLAG_SETS = 4096  # a mailbox of ordinary mail has tens; hostile ones must not fill the memory

_JOINED_AT_ONCE = 5000  # numbers, in a millisecond

# RFC 3501 section 9: quoted strings hold any TEXT-CHAR, which excludes NUL, CR, LF and octets above 127. The limit
# keeps lines short for clients that read them into fixed buffers.
_QUOTABLE = re.compile(rb"[\x01-\x09\x0b\x0c\x0e-\x7f]{0,1024}")

_ASTRING = re.compile(rb"[!#$&'+,\-./0-9:;<=>?@A-Z\[\]^_`a-z|}~]+")

_QUOTABLE_UTF8 = re.compile(rb"[\x01-\x09\x0b\x0c\x0e-\xff]{0,1024}")  # RFC 6855 section 3, uQUOTED-CHAR

_CONTROLS = re.compile(rb"[\x00-\x1f\x7f]")

_ENTRIES_A_LINE = 20  # names of annotations, which have 256 octets at most: lines that every client takes


def tagged(tag: str, condition: str, text: str, code: str | None = None) -> bytes:
    """Format the end of a command: OK, NO or BAD, with an optional response code."""
    return _line(f"{tag} {condition} " + (f"[{code}] {text}" if code else text))


def untagged(text: str) -> bytes:
    """Format `* text`."""
    return _line("* " + text)


def status_line(condition: str, text: str, code: str | None = None) -> bytes:
    """Format an untagged OK, NO, BAD, BYE or PREAUTH."""
    return tagged("*", condition, text, code)


def continuation(text: str) -> bytes:
    """Format `+ text`, which asks the client to continue."""
    return _line("+ " + text)


def flag_list(flags: Iterable[str]) -> str:
    """Format a list of flags, each once, system flags first, the rest by name, so that equal sets print alike."""
    order = {flag: position for position, flag in enumerate((*SYSTEM_FLAGS, RECENT))}
    return f"({' '.join(sorted(shown_once(flags), key=lambda flag: order.get(flag, len(order))))})"


class FlagFormatter:
    """A cache of `flag_list` by set: a mailbox has few different sets of flags and many messages."""

    def __init__(self) -> None:
        self._printed: dict[frozenset[str], Atom] = {}

    def __call__(self, flags: frozenset[str]) -> Atom:
        """Return the list of these flags."""
        printed = self._printed.get(flags)
        if printed is None:
            if len(self._printed) >= _CACHED_FLAG_SETS:
                self._printed.clear()
            printed = self._printed[flags] = Atom(flag_list(flags))
        return printed


def quoted_or_literal(text: bytes, *, utf8: bool = False) -> list[bytes]:
    """Format a `string` of RFC 3501 section 9 as chunks. `utf8`: it is UTF-8, which the client takes when quoted."""
    if (_QUOTABLE_UTF8 if utf8 else _QUOTABLE).fullmatch(text):
        return [b'"', text.replace(b"\\", b"\\\\").replace(b'"', b'\\"'), b'"']
    return [b"{%d}\r\n" % len(text), without_nul(text)]


def without_nul(text: bytes) -> bytes:
    """Return octets of a literal, in which NUL must not occur (RFC 3501 section 9, CHAR8). Their number stays."""
    return text.replace(b"\0", b"\x80")


def mailbox(name: str, *, utf8: bool = False) -> bytes:
    """Format a mailbox name, always as a string, so that no client can take it for anything else.

    `utf8`: for a client that takes UTF-8 in quoted strings (RFC 6855 section 3), else in modified UTF-7.
    """
    return b"".join(quoted_or_literal(name.encode() if utf8 else encode_name(name), utf8=utf8))


def _string(text: str) -> bytes:
    return b"".join(quoted_or_literal(text.encode()))


def list_line(
    verb: str,
    attributes: Sequence[str],
    name: str,
    child_info: Sequence[str] = (),
    old_name: str | None = None,
    *,
    utf8: bool = False,
) -> bytes:
    """Format a LIST or LSUB response (RFC 3501 sections 7.2.2 and 7.2.3).

    With CHILDINFO (RFC 5258 section 3.5) or OLDNAME (RFC 5465 section 5.4), if they are given.
    """
    extended = b""
    if child_info:
        extended = (' ("CHILDINFO" (' + " ".join(f'"{option}"' for option in child_info) + "))").encode("ascii")
    elif old_name is not None:
        extended = b' ("OLDNAME" (%b))' % mailbox(old_name, utf8=utf8)
    return b'* %b (%b) "%b" %b%b\r\n' % (
        verb.encode("ascii"),
        " ".join(attributes).encode("ascii"),
        SEPARATOR.encode("ascii"),
        mailbox(name, utf8=utf8),
        extended,
    )


def status_response(name: str, items: Iterable[tuple[str, str]], *, utf8: bool = False) -> bytes:
    """Format a STATUS response (RFC 3501 section 7.2.4) of items and their printed values."""
    printed = " ".join(f"{item} {value}" for item, value in items)
    return b"* STATUS %b (%b)\r\n" % (mailbox(name, utf8=utf8), printed.encode("ascii"))


def quota_root_response(name: str, roots: Iterable[str], *, utf8: bool = False) -> bytes:
    """Format a QUOTAROOT response (RFC 9208 section 4.2.2)."""
    return b"* QUOTAROOT %b\r\n" % b" ".join([mailbox(name, utf8=utf8), *map(_string, roots)])


def quota_response(root: str, resources: Iterable[tuple[str, int, int]]) -> bytes:
    """Format a QUOTA response (RFC 9208 section 4.2.1) of resources, each with what is used and its limit."""
    printed = " ".join(f"{name} {used} {limit}" for name, used, limit in resources)
    return b"* QUOTA %b (%b)\r\n" % (_string(root), printed.encode("ascii"))


def metadata_response(name: str, values: Mapping[str, bytes | None], *, utf8: bool = False) -> list[bytes]:
    """Format a METADATA response with values (RFC 5464 section 4.4.1); the empty name stands for the account."""
    chunks = [b"* METADATA ", mailbox(name, utf8=utf8)]
    for number, (entry, value) in enumerate(values.items()):
        chunks += [b" " if number else b" (", *_entry_name(entry), b" ", *_nstring(value)]
    return [*chunks, b")\r\n"]


def metadata_names_response(name: str, entries: Sequence[str], *, utf8: bool = False) -> list[bytes]:
    """Format METADATA responses without values (RFC 5464 section 4.4.2): several if the names make a long line."""
    chunks = list[bytes]()
    for start in range(0, len(entries), _ENTRIES_A_LINE):
        chunks += [b"* METADATA ", mailbox(name, utf8=utf8)]
        for entry in entries[start : start + _ENTRIES_A_LINE]:
            chunks += [b" ", *_entry_name(entry)]
        chunks.append(b"\r\n")
    return chunks


def _entry_name(entry: str) -> list[bytes]:
    octets = entry.encode("latin-1")
    return [octets] if _ASTRING.fullmatch(octets) else quoted_or_literal(octets)


def _nstring(value: bytes | None) -> list[bytes]:
    """Format a value: NIL, a string, or a literal8 (RFC 3516) if it has octets that a string may not have."""
    if value is None:
        return [b"NIL"]
    return [b"~{%d}\r\n" % len(value), value] if b"\0" in value else quoted_or_literal(value)


def search_response(verb: str, numbers: Sequence[int], modseq: int | None) -> list[bytes]:
    """Format a SEARCH or SORT response (RFC 3501 section 7.2.5, RFC 5256 section 4); without matches, an empty list.

    `modseq`: the highest MODSEQ of the messages, if the client is to be told (RFC 7162 section 3.1.6).
    """
    told = [] if modseq is None else [b" (MODSEQ %d)" % modseq]
    return [b"* %b" % verb.encode("ascii"), *_numbers(numbers), *told, b"\r\n"]


def _numbers(numbers: Sequence[int]) -> Iterator[bytes]:
    """Yield the numbers with a space before each, some at a time: other threads wait while they are joined."""
    for start in range(0, len(numbers), _JOINED_AT_ONCE):
        some = numbers[start : start + _JOINED_AT_ONCE]
        yield b" %d" * len(some) % (*some,)


def thread_response(numbers: Sequence[int], forms: Iterable[bytes]) -> list[bytes]:
    """Format a THREAD response (RFC 5256 section 4) by the forms of its lists, in which each number has a "%d"."""
    lists, start = list[bytes](), 0
    for form in forms:
        end = start + form.count(b"%d")
        lists.append(form % (*numbers[start:end],))
        start = end
    return [b"* THREAD", *([b" "] if lists else []), *lists, b"\r\n"]


def esearch_response(
    tag: str, numbers: Sequence[int], returns: Returns, modseq: int | None, *, by_uid: bool
) -> list[bytes]:
    """Format an ESEARCH response (RFC 4731 section 3.1) of the numbers found, in their order.

    `modseq`: the MODSEQ of the result, if the client is to be told (section 3.2).
    """
    results = []
    if numbers:
        results += [f"MIN {numbers[0]}"] if ReturnOption.MIN in returns else []
        results += [f"MAX {numbers[-1]}"] if ReturnOption.MAX in returns else []
        results += [f"ALL {_runs(numbers)}"] if ReturnOption.ALL in returns else []
    if returns.partial is not None:  # RFC 5267 section 4.4
        first, last = returns.partial
        results.append(f"PARTIAL ({first}:{last} {_runs(places(numbers, returns.partial)) or 'NIL'})")
    if ReturnOption.COUNT in returns:
        results.append(f"COUNT {len(numbers)}")
    results += [] if modseq is None else [f"MODSEQ {modseq}"]
    return [_esearch(tag, results, by_uid=by_uid)]


def update_response(
    tag: str, name: str, numbers: Sequence[int], places: Sequence[int] | None, *, by_uid: bool
) -> bytes:
    """Format an ESEARCH response with ADDTO or REMOVEFROM (RFC 5267 section 4.3.2).

    `places`: those of the messages; None if they have no order, and ascend.
    """
    if places is None:
        return _esearch(tag, [f"{name} (0 {_runs(numbers)})"], by_uid=by_uid)
    pairs = b"".join(_numbers([*chain.from_iterable(zip(places, numbers, strict=True))]))
    return _esearch(tag, [f"{name} ({pairs[1:].decode('ascii')})"], by_uid=by_uid)


def _esearch(tag: str, results: Sequence[str], *, by_uid: bool) -> bytes:
    words = [f'* ESEARCH (TAG "{tag}")', *(["UID"] if by_uid else []), *results]
    return " ".join(words).encode("ascii") + b"\r\n"


def places(numbers: Sequence[int], partial: tuple[int, int]) -> Sequence[int]:
    """Return the numbers at these places, counted from 1, the last one included."""
    return numbers[partial[0] - 1 : partial[1]]


def vanished_response(uids: UidSet, *, earlier: bool = False) -> bytes:
    """Format a VANISHED response (RFC 7162 section 3.2.10)."""
    return untagged(f"VANISHED {'(EARLIER) ' if earlier else ''}{uids}")


def fetch_response(number: int, values: Sequence[tuple[bytes, Value]]) -> list[Chunk]:
    """Format a FETCH response (RFC 3501 section 7.4.2) as chunks, without copying large contents.

    A `Span` and a `Decoded` stand for octets of the message.
    """
    chunks: list[Chunk] = [b"* %d FETCH (" % number]
    for position, (name, value) in enumerate(values):
        chunks += [b" " if position else b"", name, b" "]
        _print(value, chunks)
    chunks.append(b")\r\n")
    return _joined(chunks)


def printed(value: Value) -> Printed:
    """Format a value of a FETCH response ahead: in a thread if it is large."""
    chunks: list[Chunk] = []
    _print(value, chunks)
    return Printed(tuple(_joined(chunks)))


def without_body(chunks: Sequence[Chunk]) -> list[bytes]:
    """Return a FETCH response that is all octets."""
    small = [chunk for chunk in chunks if isinstance(chunk, bytes)]
    assert len(small) == len(chunks), "no item needs the text"
    return small


def appenduid(uidvalidity: int, uids: Sequence[int]) -> str:
    """Format the APPENDUID code (RFC 4315 section 3) of messages in the order of their APPEND."""
    return f"APPENDUID {uidvalidity} {_runs(uids)}"


def copyuid(uidvalidity: int, pairs: Sequence[tuple[int, int]]) -> str:
    """Format the COPYUID code (RFC 4315 section 3) of pairs (source UID, destination UID), ascending by source.

    The two sets correspond in written order, so destinations that do not ascend are not folded into a sorted set.
    """
    sources = UidSet.of(source for source, _ in pairs)
    return f"COPYUID {uidvalidity} {sources} {_runs([destination for _, destination in pairs])}"


def _runs(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}:{high}" for low, high in runs)


def _joined(chunks: list[Chunk]) -> list[Chunk]:
    """Join runs of small chunks: an answer may have millions of them, too many to send singly."""
    joined: list[Chunk] = []
    small: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, bytes) and len(chunk) < _LARGE_CHUNK:
            small.append(chunk)
        else:
            joined += (b"".join(small), chunk)
            small = []
    return [*joined, b"".join(small)]


def _print(value: Value, chunks: list[Chunk]) -> None:
    if value is None:
        chunks.append(b"NIL")
    elif isinstance(value, int):
        chunks.append(b"%d" % value)
    elif isinstance(value, bytes):
        chunks += quoted_or_literal(value)
    elif isinstance(value, Span):
        chunks += (b"{%d}\r\n" % (value.end - value.start), value)
    elif isinstance(value, Decoded):
        chunks.append(value)
    elif isinstance(value, str):
        chunks.append(value.encode("ascii"))
    elif isinstance(value, Adjacent):
        for part in value.values:
            _print(part, chunks)
    elif isinstance(value, Printed):
        chunks += value.chunks
    else:
        _print_list(value, chunks)


def _print_list(values: tuple[Value, ...], chunks: list[Chunk]) -> None:
    chunks.append(b"(")
    for position, value in enumerate(values):
        if position:
            chunks.append(b" ")
        _print(value, chunks)
    chunks.append(b")")


def _line(text: str) -> bytes:
    """End a line. Control characters are replaced, because quoted parts of a client's input must not end the line."""
    return _CONTROLS.sub(b"?", text.encode("ascii", "replace")) + b"\r\n"
