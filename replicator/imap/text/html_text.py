"""Text of HTML mail as its reader sees it, line by line. Pure functions, which never raise.

Not a parser of HTML: nothing is nested, so no depth can hurt. Each step looks for a sign from where the last one ended,
so the time is linear, and the number of tags is limited. (The parser of Python takes quadratic time for some texts.)
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

MAX_TAGS = 2_000
"""Tags that are looked at: some times what newsletters have before their first sentence, and some milliseconds."""

_TEXT_CHARACTERS = 4_000  # of one text between tags: `html.unescape` raises ValueError for numbers of 4,300 digits

# HTML Living Standard section 13.1.2 (start tags, end tags), as lenient as browsers; the last two are comments to them.
_TAG = re.compile(
    r"""<(?:(?P<name>/?[a-z][^\s/>]*+)(?P<attributes>(?>(?:[^>"']++|"[^"]*+"|'[^']*+')*))>?|[!?][^>]*+>?|/[^>]*+>?)""",
    re.IGNORECASE,
)
_ATTRIBUTE = re.compile(r"""([^\s=/"']++)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s"']++))?""")

_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style", "textarea", "title", "xmp")}
"""Elements whose content has no tags (section 13.1.2), with the beginning of their end."""

_UNSHOWN = frozenset({*_RAW, "canvas", "map", "math", "noscript", "object", "select", "svg", "template"})
_VOID = frozenset(
    {
        *("area", "base", "br", "col", "embed", "hr", "img", "input"),
        *("link", "meta", "source", "track", "wbr"),
    }
)
_BREAKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "br", "center", "dd", "div", "dl", "dt"),
        *("fieldset", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li"),
        *("main", "nav", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul"),
    }
)

# Preheaders and the like. A font size of 0 hides nothing: layouts give it to the cells around their texts.
_HIDDEN = re.compile(
    r"(?:^|[;\s])(?:display\s*:\s*none|visibility\s*:\s*hidden|(?:opacity|max-height)\s*:\s*0(?![.\d]*[1-9]))",
    re.IGNORECASE,
)


def html_lines(text: str) -> Iterator[str]:
    """Yield the lines that are shown; lines of a BLOCKQUOTE begin with `>`. Spaces in them are as in the text."""
    pieces: list[str] = []
    quotes = 0
    for piece, name in _shown(text):
        pieces.append(piece)
        if name.removeprefix("/") not in _BREAKS:
            continue
        yield _line(pieces, quotes)
        pieces = []
        if name == "blockquote":
            quotes += 1
        elif name == "/blockquote":
            quotes = max(0, quotes - 1)
    yield _line(pieces, quotes)


def _line(pieces: list[str], quotes: int) -> str:
    return ">" * bool(quotes) + " ".join("".join(pieces).splitlines())


def _shown(text: str) -> Iterator[tuple[str, str]]:
    """Yield each text that is shown, with the name of the tag behind it in lower case, as in `br` or `/p`."""
    at, hiding, depth = 0, "", 0  # within so many elements of the name `hiding`, the outermost of which is hidden
    for _ in range(MAX_TAGS):
        start = text.find("<", at)
        piece = "" if hiding else html.unescape(text[at : start if start >= 0 else len(text)][:_TEXT_CHARACTERS])
        if start < 0:
            yield piece, ""
            return
        name, attributes, at = _tag(text, start)
        if not hiding:
            yield (piece, name) if name != "<" else (piece + name, "")
            if name not in _VOID and (name in _UNSHOWN or _is_hidden(attributes)) and not attributes.endswith("/"):
                hiding, depth = name, 1
        elif name.removeprefix("/") == hiding:
            depth += -1 if name.startswith("/") or name == "p" else 1  # a P ends where the next one begins
            hiding = hiding if depth else ""
        if name in _RAW:
            end = _RAW[name].search(text, at)
            at = len(text) if end is None else end.start()


def _tag(text: str, start: int) -> tuple[str, str, int]:
    """Return the name of the tag here in lower case, empty for a comment, its attributes, and where it ends."""
    if text.startswith("<!--", start):
        end = text.find("-->", start + 4)
        return "", "", len(text) if end < 0 else end + 3
    tag = _TAG.match(text, start)
    if tag is None:
        return "<", "", start + 1  # a sign that is no tag
    return (tag["name"] or "").lower(), tag["attributes"] or "", tag.end()


def _is_hidden(attributes: str) -> bool:
    lowered = attributes.lower()
    if "style" not in lowered and "hidden" not in lowered:
        return False
    found = {name.lower(): value.strip("\"'") for name, value in _ATTRIBUTE.findall(attributes)}
    return "hidden" in found or _HIDDEN.search(found.get("style", "")) is not None
