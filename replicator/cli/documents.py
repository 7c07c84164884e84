"""Reading JSON documents of a node into the dataclasses of which the node made them."""

from __future__ import annotations

from dataclasses import is_dataclass
from types import UnionType
from typing import TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def parsed(kind: type[T], document: object) -> T:
    """Return the dataclass of this kind, with tuples and other dataclasses in it.

    Raises TypeError, ValueError or KeyError if the document lacks members or has others.
    """
    if not isinstance(document, dict):
        raise TypeError(f"not an object: {document!r:.80}")
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in document.items()})


def _value(hint: object, value: object) -> object:
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        return tuple(_value(arguments[0], one) for one in cast("list[object]", value))
    if isinstance(hint, UnionType):
        return None if value is None else _value(arguments[0], value)
    return parsed(hint, value) if isinstance(hint, type) and is_dataclass(hint) else value
