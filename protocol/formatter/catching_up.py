"""Formatters of `protocol.commands.catching_up`."""

from __future__ import annotations

from protocol import commands as c
from protocol.formatter import values as v
from protocol.values import Dot


@v.form.register
def _(sync: c.SyncNode) -> list[v.Field]:
    return ["SYNC", "NODE", *v.option("TO", v.sid, sync.destination)]


@v.form.register
def _(sync: c.SyncMailbox) -> list[v.Field]:
    anew = ["ANEW"] if sync.anew else []
    return ["SYNC", "MAILBOX", v.number_32(sync.mailbox), *anew, *v.option("TO", v.sid, sync.destination)]


@v.form.register
def _(ranges: c.Ranges) -> list[v.Field]:
    destination = v.option("TO", v.sid, ranges.destination)
    return ["RANGES", v.number_32(ranges.snapshot), v.list_of(v.prefix, ranges.prefixes), *destination]


@v.form.register
def _(rows: c.Rows) -> list[v.Field]:
    return ["ROWS", v.number_32(rows.snapshot), *v.option("TO", v.sid, rows.destination), rows.keys]


@v.form.register
def _(sync: c.SyncEnd) -> list[v.Field]:
    return ["SYNC", "END", v.number_32(sync.snapshot), *v.option("TO", v.sid, sync.destination)]


@v.form.register
def _(fetch: c.FetchUid) -> list[v.Field]:
    return ["FETCH", "UID", v.number_32(fetch.mailbox), v.uid(fetch.uid)]


@v.form.register
def _(fetch: c.FetchGuid) -> list[v.Field]:
    return ["FETCH", "GUID", v.hex_id(fetch.guid)]


@v.form.register
def _(fetch: c.FetchHash) -> list[v.Field]:
    return ["FETCH", "HASH", v.content_hash(fetch.content_hash)]


@v.form.register
def _(fetch: c.FetchBodies) -> list[v.Field]:
    return ["FETCH", "BODIES", fetch.hashes]


@v.form.register
def _(fetch: c.FetchCheckpoints) -> list[v.Field]:
    return ["FETCH", "CHECKPOINTS", fetch.chain_ids]


@v.form.register
def _(fetch: c.FetchPart) -> list[v.Field]:
    return ["FETCH", "PART", v.content_hash(fetch.content_hash), v.number(fetch.start)]


@v.form.register
def _(log: c.Log) -> list[v.Field]:
    return ["LOG", v.list_of(v.dot, log.context), *(["INLINE"] if log.inline else [])]


@v.form.register
def _(entries: c.Entries) -> list[v.Field]:
    return ["ENTRIES", entries.packed]


@v.form.register
def _(ack: c.Ack) -> list[v.Field]:
    return ["ACK", v.dot(Dot(ack.origin, ack.seq)), *v.option("BY", v.sid, ack.sid)]


@v.form.register
def _(settled: c.Settled) -> list[v.Field]:
    return ["SETTLED", v.sid(settled.sid), v.number(settled.sequence), v.list_of(v.dot, settled.context)]
