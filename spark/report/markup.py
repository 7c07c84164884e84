"""Elements of a page, and the notation of numbers, shares and times.

All text goes through `element`, and ElementTree writes the tree, so no character of a name can become markup. Invisible
characters (controls, marks of writing direction) are spelled out, so that a name looks like what it is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import Element, tostring

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """Return an element. In names of attributes `_` becomes `-`, and is dropped at the end: `class_`, `aria_label`."""
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
    """Return HTML that is also well-formed XML.

    Every element gets an end tag: HTML has few that are empty without one.
    """
    return tostring(one, encoding="unicode", short_empty_elements=False)


def visible(text: str) -> str:
    """Return the text with each character that shows nothing replaced by its Python escape."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def number(value: int) -> str:
    """Return the number with separators of thousands."""
    return f"{value:,}"


def count(value: int, noun: str, plural: str = "") -> str:
    """Return `1 mailbox`, `2 mailboxes`."""
    return f"{number(value)} {noun if value == 1 else plural or noun + 's'}"


def share(part: int, whole: int) -> str:
    """Return the share in percent, rounded down: 100 % means all, 0 % nothing. All of an empty whole is 100 %."""
    if part >= whole:
        return "100 %"
    if part <= 0:
        return "0 %"
    hundredths = part * 10_000 // whole
    return f"{hundredths / 100:.2f} %" if hundredths else "under 0.01 %"


def moment(ms: int) -> str:
    """Return milliseconds since the epoch as a date and a time of day in UTC."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{number(ms)} ms after 1970"


def span(ms: int) -> str:
    """Return a duration in its two largest units."""
    if ms < 1000:
        return f"{ms} ms" if ms else "0 s"
    parts, rest = [], ms // 1000
    for seconds, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        amount, rest = divmod(rest, seconds)
        parts.append((amount, unit))
    first = next(place for place, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{number(amount)} {unit}" for amount, unit in parts[first : first + 2] if amount)


def listed(names: list[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`; of a long list the first ones and the number of the others."""
    if len(names) > 6:
        names = [*names[:5], f"{number(len(names) - 5)} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
