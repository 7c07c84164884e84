"""JSON documents of a node, read into the dataclasses of which the node made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def parsed(kind: type[T], document: object) -> T:
    """Return the document as this kind: a dataclass, or a list of them, with lists, objects and dataclasses in it.

    Raises TypeError, ValueError or KeyError if the document lacks members or has others.
    """
    return cast("T", _value(kind, document))


def _value(hint: object, value: object) -> object:
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin in {tuple, list}:
            if not isinstance(value, list):
                raise TypeError(f"not a list: {value!r:.80}")
            members = [_value(arguments[0], one) for one in value]
            return members if origin is list else tuple(members)
        case origin if origin in {dict, Mapping}:
            return {name: _value(arguments[1], one) for name, one in _object(value).items()}
        case origin if origin in {UnionType, Union}:
            return None if value is None else _value(arguments[0], value)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = _hints(hint)
        return hint(**{name: _value(hints[name], one) for name, one in _object(value).items()})
    return value


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"not an object: {value!r:.80}")
    return value


@cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind)
