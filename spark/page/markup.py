"""Elements of a page, and how numbers, shares and times are written.

All text goes through `element`, and a tree is written by ElementTree, so nothing that a name holds can become markup.
What cannot be seen (controls, marks that turn the direction of writing) is spelled out: a name looks like what it is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import Element, tostring

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """An element. Of names of attributes `_` becomes `-`, and is left out at the end: `class_`, `aria_label`."""
    made = Element(tag, {key.rstrip("_").replace("_", "-"): visible(value) for key, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + visible(child)
        else:
            made.text = (made.text or "") + visible(child)
    return made


def markup(one: Element) -> str:
    """HTML that is well-formed XML as well. No element is written as an empty one: HTML knows that of a few only."""
    return tostring(one, encoding="unicode", short_empty_elements=False)


def visible(text: str) -> str:
    """The text, with each character that shows nothing as its escape in Python."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def number(value: int) -> str:
    """With separators of thousands."""
    return f"{value:,}"


def count(value: int, noun: str, plural: str = "") -> str:
    """`1 mailbox`, `2 mailboxes`."""
    return f"{number(value)} {noun if value == 1 else plural or noun + 's'}"


def share(part: int, whole: int) -> str:
    """In percent, rounded down, so that 100 % is all of it and 0 % nothing. Of nothing all is 100 %."""
    if part >= whole:
        return "100 %"
    if part <= 0:
        return "0 %"
    hundredths = part * 10_000 // whole
    return f"{hundredths / 100:.2f} %" if hundredths else "under 0.01 %"


def moment(ms: int) -> str:
    """Milliseconds since the epoch, as a date and a time of day in UTC."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{number(ms)} ms after 1970"


def span(ms: int) -> str:
    """How long, in the two largest units that it takes."""
    if ms < 1000:
        return f"{ms} ms" if ms else "0 s"
    parts, rest = [], ms // 1000
    for seconds, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        amount, rest = divmod(rest, seconds)
        parts.append((amount, unit))
    first = next(place for place, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{number(amount)} {unit}" for amount, unit in parts[first : first + 2] if amount)


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`; of many the first ones and how many more."""
    if len(names) > 6:
        names = [*names[:5], f"{number(len(names) - 5)} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
