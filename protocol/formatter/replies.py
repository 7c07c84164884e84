"""Formatters of `protocol.commands.replies`."""

from __future__ import annotations

from protocol import commands as c
from protocol.formatter import values as v


@v.form.register
def _(done: c.Done) -> list[v.Field]:
    return v.option("ENTRY", v.dot, done.dot)


@v.form.register
def _(master: c.Master) -> list[v.Field]:
    return ["MASTER", v.sid(master.sid), *v.option("OF", v.string, master.covering)]


@v.form.register
def _(moved: c.Moved) -> list[v.Field]:
    return ["MOVED", v.string(moved.scope), v.maybe_dot(moved.head)]


@v.form.register
def _(saved: c.Saved) -> list[v.Field]:
    return [
        "SAVED",
        v.list_of(v.uid, saved.uids),
        v.list_of(v.dot, saved.dots),
        *v.option("MASTER", v.sid, saved.master),
    ]


@v.form.register
def _(stored: c.Stored) -> list[v.Field]:
    return ["STORED", v.uid_set(stored.refused), v.number(stored.modseq), *v.option("ENTRY", v.dot, stored.dot)]


@v.form.register
def _(mismatch: c.Mismatch) -> list[v.Field]:
    return [
        "MISMATCH",
        v.list_of(v.atom, mismatch.fields),
        v.maybe_dot(mismatch.head),
        v.list_of(v.dot, mismatch.context),
    ]


@v.form.register
def _(snapshot: c.Snapshot) -> list[v.Field]:
    return [
        "SNAPSHOT",
        v.number_32(snapshot.number),
        v.number_32(snapshot.uidnext),
        v.number(snapshot.modseq),
        v.number_32(snapshot.risen),
        v.maybe_dot(snapshot.head),
        v.list_of(v.dot, snapshot.context),
        v.digest(snapshot.digest),
        v.number(snapshot.size),
        v.hex_id(snapshot.total),
        v.number(snapshot.time),
        "NIL" if snapshot.history is None else v.hex_id(snapshot.history),
    ]


@v.form.register
def _(content: c.Content) -> list[v.Field]:
    return ["CONTENT", content.message]


@v.form.register
def _(refused: c.Refused) -> list[v.Field]:
    return [v.atom(refused.code), v.string(refused.text)]
