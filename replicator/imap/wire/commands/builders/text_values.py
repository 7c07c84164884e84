"""Values read from their text: numbers, dates, names. MeaninglessError tells what is wrong with one."""

from __future__ import annotations

import datetime as dt
import re

from protocol.values import UID_MAX

MAX_OCTETS = 2**63 - 1  # RFC 9051 number64: sizes and offsets; the store has signed 64 bits
MODSEQ_MAX = 2**63 - 1  # RFC 7162 section 7

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_FIELD_NAME = re.compile(rb"[\x21-\x39\x3b-\x7e]+")  # RFC 5322 section 2.2: printable ASCII except the colon


class MeaninglessError(Exception):
    """Text that matches the grammar but has no meaning. The message says what and why."""


def octets(text: str) -> bytes:
    """Return the octets of a text that was decoded as Latin-1, as the parser has it."""
    return text.encode("latin-1")


def latin(text: bytes) -> str:
    """Return octets as Latin-1, a character for each."""
    return text.decode("latin-1")


def message_number(text: str) -> int | None:
    """Return a sequence number or UID; None for "*". Raises MeaninglessError."""
    if text == "*":
        return None
    if (number := int(text)) > UID_MAX:
        raise MeaninglessError(f"{text} is more than {UID_MAX}, the largest number of a message")
    return number


def message_range(text: str) -> tuple[int | None, int | None]:
    """Return both ends of a range, or a number twice. Raises MeaninglessError."""
    low, _, high = text.partition(":")
    return message_number(low), message_number(high or low)


def octet_count(digits: str) -> int:
    """Return a size or an offset in octets. Raises MeaninglessError."""
    if (count := int(digits)) > MAX_OCTETS:
        raise MeaninglessError(f"{digits} is more than {MAX_OCTETS}, the largest number of octets")
    return count


def modseq_number(digits: str) -> int:
    """Return a MODSEQ (RFC 7162 section 7). Raises MeaninglessError."""
    if (modseq := int(digits)) > MODSEQ_MAX:
        raise MeaninglessError(f"{digits} is more than {MODSEQ_MAX}, the largest MODSEQ")
    return modseq


def parsed_date(text: str) -> dt.date:
    """Return a `date` of RFC 3501, quoted or not. Raises MeaninglessError."""
    day, month, year = text.strip('"').split("-")
    try:
        return dt.date(int(year), _MONTHS.index(month.lower()) + 1, int(day))
    except ValueError as error:
        raise MeaninglessError(f"{text} is not a valid date") from error


def date_time_ms(text: str) -> int:
    """Convert a `date-time` of RFC 3501 to milliseconds since the epoch."""
    date, time, zone = text.strip('"').strip().split(" ")
    hour, minute, second = (int(part) for part in time.split(":"))
    offset = (int(zone[1:3]) * 60 + int(zone[3:5])) * (-1 if zone[0] == "-" else 1)
    try:
        moment = dt.datetime.combine(parsed_date(date), dt.time(hour, minute, min(second, 59)), dt.UTC)
    except ValueError as error:
        raise MeaninglessError(f"{text} is not a valid time") from error
    return (int(moment.timestamp()) - offset * 60) * 1000


def field_name(name: bytes) -> str:
    """Return a header field's name, which may be as long as a literal. Raises MeaninglessError."""
    if not _FIELD_NAME.fullmatch(name):
        raise MeaninglessError(f"{name!r} is not the name of a header field")
    return name.decode("ascii")
