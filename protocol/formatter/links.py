"""Formatters of `protocol.commands.links`."""

from __future__ import annotations

from protocol import commands as c
from protocol.formatter import values as v


def _neighbour(neighbour: tuple[str, int]) -> str:
    sid, round_trip_us = neighbour
    return f"({v.sid(sid)} {v.number(round_trip_us)})"


def _advert(advert: c.LinkAdvert) -> str:
    numbers = f"{v.number(advert.priority)} {v.number(advert.sequence)}"
    return f"({v.match('ORIGIN', advert.origin)} {numbers} {v.list_of(_neighbour, advert.neighbours)})"


@v.form.register
def _(hello: c.Hello) -> list[v.Field]:
    return [
        "HELLO",
        v.number_32(hello.version),
        v.sid(hello.sid),
        v.match("ORIGIN", hello.origin),
        v.string(hello.cluster),
        v.list_of(v.atom, hello.capabilities),
        v.number(hello.clock_ms),
    ]


@v.form.register
def _(_ping: c.Ping) -> list[v.Field]:
    return ["PING"]


@v.form.register
def _(links: c.Links) -> list[v.Field]:
    return ["LINKS", v.list_of(_advert, links.adverts)]
