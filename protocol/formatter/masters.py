"""Formatters of `protocol.commands.masters`."""

from __future__ import annotations

from protocol import commands as c
from protocol.formatter import values as v


@v.form.register
def _(root: c.Root) -> list[v.Field]:
    return ["ROOT", v.number(root.term), v.sid(root.root)]


@v.form.register
def _(dropped: c.Dropped) -> list[v.Field]:
    return ["DROPPED", v.number(dropped.term), v.sid(dropped.sid), v.list_of(v.dot, dropped.context)]


@v.form.register
def _(who: c.Who) -> list[v.Field]:
    former = v.option("FROM", v.sid, who.former)
    return ["WHO", v.number(who.term), v.string(who.scope), v.sid(who.candidate), *former]


@v.form.register
def _(move: c.MasterMove) -> list[v.Field]:
    now = ["NOW"] if move.now else []
    return ["MASTER-MOVE", v.number_32(move.mailbox), v.number(move.term), v.sid(move.destination), *now]
