"""The routes as an OpenAPI 3.1 document: what each takes and answers, by the types that handlers read and encode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from importlib.metadata import version
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from replicator.http.access import needed_role
from replicator.http.documents import ProblemDocument
from replicator.http.message import JSON_TYPE, PROBLEM_TYPE
from replicator.http.parameters import FLAGS, NUMBERS, PARAMETERS
from replicator.http.routing import Route, Services

Schema = dict[str, object]

SIMPLE: Mapping[object, Schema] = {
    NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    object: {},
}


def openapi_document(routes: Sequence[Route[Services]]) -> Schema:
    """Return the document. Raises TypeError if a type has no schema."""
    schemas = Schemas()
    problem = {"description": "a problem", "content": {PROBLEM_TYPE: {"schema": schemas.of(ProblemDocument)}}}
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mail-replicator", "version": version("mail-replicator")},
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas.named,
            "responses": {"Problem": problem},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route[Services], schemas: Schemas) -> Schema:
    handler: Callable[..., object] = route.handler
    told = (handler.func if isinstance(handler, partial) else handler).__doc__ or ""
    answer: Schema = {"description": "done"}
    if route.answer is not None:
        answer["content"] = {JSON_TYPE: {"schema": schemas.of(route.answer)}}
    operation: Schema = {
        "summary": told.partition("\n")[0],
        "parameters": [
            *(_parameter(part[1:-1], "path", is_needed=True) for part in route.path.split("/") if part.startswith("{")),
            *(_parameter(name, "query", is_needed=name in route.needed) for name in sorted(route.query)),
        ],
        "responses": {
            "2XX": answer,
            **{str(int(code)): answer for code in route.also},
            "default": {"$ref": "#/components/responses/Problem"},
        },
        "security": [] if route.is_open else [{"token": [needed_role(route.method, route)]}, {}],
    }
    if route.body_type is not None:
        body = {} if route.takes is None else {"schema": schemas.of(route.takes, may_be_left_out=True)}
        operation["requestBody"] = {"required": True, "content": {route.body_type: body}}
    return operation


def _parameter(name: str, place: str, *, is_needed: bool) -> Schema:
    schema = {"type": "integer", "minimum": 0} if name in NUMBERS else SIMPLE[bool if name in FLAGS else str]
    return {
        "name": name,
        "in": place,
        "required": is_needed,
        "description": PARAMETERS[name],
        "schema": schema,
    }


class Schemas:
    """JSON schemas of types; those of classes are `named`, and others refer to them."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}
        self._described: dict[str, tuple[type, bool]] = {}

    def of(self, kind: object, *, may_be_left_out: bool = False) -> Schema:
        """Return the schema of a type as JSON has it. `may_be_left_out`: members with a default may be, or be null.

        Raises TypeError, also if two classes, or two forms of one, would have the same name.
        """
        if kind in SIMPLE:
            return SIMPLE[kind]
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": list(inner)}
        if origin in {Union, UnionType}:
            return {"anyOf": [self.of(one) for one in inner]}
        if origin is tuple and inner[-1] is not Ellipsis:
            return {"type": "array", "prefixItems": [self.of(one) for one in inner], "items": False}
        if origin in {list, tuple}:
            return {"type": "array", "items": self.of(inner[0])}
        if origin in {dict, Mapping}:
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        if isinstance(kind, type) and (is_dataclass(kind) or is_typeddict(kind)):
            return self._of_class(kind, may_be_left_out=may_be_left_out)
        raise TypeError(f"{kind} has no schema")

    def _of_class(self, kind: type[Any], *, may_be_left_out: bool) -> Schema:
        reference: Schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
        described = self._described.setdefault(kind.__name__, (kind, may_be_left_out))
        if described != (kind, may_be_left_out):
            raise TypeError(f"{kind} has no schema of its own: {described[0]} has its name")
        if kind.__name__ in self.named:
            return reference
        self.named[kind.__name__] = {}  # a class may refer to itself
        hints = {
            name: hint
            for name, hint in get_type_hints(kind, include_extras=True).items()
            if get_origin(hint) is not ClassVar
        }
        optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
        if may_be_left_out and is_dataclass(kind):
            defaults = {each.name for each in fields(kind) if each.default is not MISSING}
            optional |= defaults
            hints |= {name: hints[name] | None for name in defaults}
        members = {
            name: self.of(get_args(hint)[0] if get_origin(hint) is NotRequired else hint)
            for name, hint in hints.items()
        }
        self.named[kind.__name__] = {
            "type": "object",
            "properties": members,
            "required": [name for name in hints if name not in optional],
            "additionalProperties": False,
        }
        return reference
