"""Formatters of `protocol.commands.mailboxes`."""

from __future__ import annotations

from itertools import chain

from protocol import commands as c
from protocol.formatter import values as v


def _header(entry: c.EntryHeader) -> str:
    histories = "NIL" if entry.histories is None else v.list_of(v.hex_id, entry.histories)
    dated = " DATED" if entry.dated else ""
    return (
        f"({v.dot(entry.dot)} {v.list_of(v.dot, entry.predecessors)} {v.number(entry.time)} {v.number(entry.modseq)}"
        f" {v.hex_id(entry.digest)} {v.number_32(entry.change)} {v.number_32(entry.changes)} {histories}{dated})"
    )


def _entry(entry: c.EntryHeader | None) -> list[v.Field]:
    return v.option("ENTRY", _header, entry)


@v.form.register
def _(mbox: c.Mbox) -> list[v.Field]:
    return [
        "MBOX",
        v.number_32(mbox.number),
        v.string(mbox.user),
        v.string(mbox.name),
        v.hex_id(mbox.mailbox_id),
        v.number_32(mbox.uidvalidity),
        v.number_32(mbox.uidnext),
        v.number(mbox.messages),
        v.number(mbox.highestmodseq),
        v.maybe_dot(mbox.head),
        v.digest(mbox.digest),
        *v.option("TO", v.sid, mbox.destination),
        *(["TEXTS"] if mbox.texts else []),
        *(["TO-MASTER"] if mbox.to_master else []),
    ]


@v.form.register
def _(text: c.Text) -> list[v.Field]:
    return ["HASH", v.content_hash(text.content_hash), text.octets]


@v.form.register
def _(parts: c.Parts) -> list[v.Field]:
    return ["PARTS", v.content_hash(parts.content_hash), v.number(parts.size), parts.recipe]


@v.form.register
def _(offer: c.Offer) -> list[v.Field]:
    return ["OFFER", *v.form(offer.message)]


@v.form.register
def _(save: c.Save) -> list[v.Field]:
    return [
        "SAVE",
        v.list_of(v.number_32, save.mailboxes),
        v.date_ms(save.received_ms),
        v.hex_id(save.guid),
        v.list_of(v.flag, save.flags),
        *v.option("UID", v.uid, save.uid),
        *_entry(save.entry),
        *v.form(save.message),
    ]


@v.form.register
def _(message: c.NewMessage) -> list[v.Field]:
    return [
        v.date_ms(message.received_ms),
        v.hex_id(message.guid),
        v.list_of(v.flag, message.flags),
        *v.option("UID", v.uid, message.uid),
        *v.form(message.message),
    ]


@v.form.register
def _(save_all: c.SaveAll) -> list[v.Field]:
    return ["SAVE-ALL", v.number_32(save_all.mailbox), *chain.from_iterable(map(v.form, save_all.messages))]


@v.form.register
def _(copy: c.Copy) -> list[v.Field]:
    return [
        "COPY",
        v.number_32(copy.source),
        v.number_32(copy.destination),
        v.uid_set(copy.source_uids),
        v.list_of(v.hex_id, copy.guids),
        v.date_ms(copy.received_ms),
        v.list_of(v.flag, copy.flags),
        *v.option("UID", v.uid, copy.uid),
        *v.option("HASH", v.content_hash, copy.content_hash),
        *v.option("SIZE", v.number, copy.size),
        *_entry(copy.entry),
        *(["ONCE"] if copy.once else []),
    ]


@v.form.register
def _(expunge: c.Expunge) -> list[v.Field]:
    return [
        "EXPUNGE",
        v.number_32(expunge.mailbox),
        v.uid_set(expunge.uids),
        *v.option("HEAD", v.dot, expunge.head),
        *_entry(expunge.entry),
    ]


@v.form.register
def _(store: c.Store) -> list[v.Field]:
    return [
        "STORE",
        v.number_32(store.mailbox),
        v.uid_set(store.uids),
        "ADD",
        v.list_of(v.flag, store.added),
        "REMOVE",
        v.list_of(v.flag, store.removed),
        *v.option("UNCHANGEDSINCE", v.number, store.unchanged_since),
        *v.option("HEAD", v.dot, store.head),
        *_entry(store.entry),
    ]


@v.form.register
def _(renumber: c.Renumber) -> list[v.Field]:
    return [
        "RENUMBER",
        v.number_32(renumber.mailbox),
        v.uid_set(renumber.uids),
        v.list_of(v.hex_id, renumber.guids),
        v.list_of(v.uid, renumber.wanted),
    ]


@v.form.register
def _(raised: c.Raise) -> list[v.Field]:
    return [
        "RAISE",
        v.number_32(raised.mailbox),
        v.uid(raised.uidnext),
        *v.option("MODSEQ", v.number, raised.modseq),
        *_entry(raised.entry),
    ]


@v.form.register
def _(create: c.Create) -> list[v.Field]:
    return [
        "CREATE",
        v.string(create.user),
        v.string(create.name),
        v.hex_id(create.mailbox_id),
        v.number_32(create.uidvalidity),
        *_entry(create.entry),
        *v.option("USE", v.string, create.use),
    ]


@v.form.register
def _(rename: c.Rename) -> list[v.Field]:
    return ["RENAME", v.string(rename.user), v.hex_id(rename.mailbox_id), v.string(rename.name), *_entry(rename.entry)]


@v.form.register
def _(delete: c.Delete) -> list[v.Field]:
    return ["DELETE", v.string(delete.user), v.hex_id(delete.mailbox_id), *_entry(delete.entry)]


@v.form.register
def _(subscribe: c.Subscribe) -> list[v.Field]:
    verb = "SUBSCRIBE" if subscribe.subscribed else "UNSUBSCRIBE"
    return [verb, v.string(subscribe.user), v.string(subscribe.name), *_entry(subscribe.entry)]


@v.form.register
def _(annotate: c.Annotate) -> list[v.Field]:
    folder = v.hex_id(annotate.mailbox_id) if annotate.mailbox_id else "NIL"
    return ["ANNOTATE", v.string(annotate.user), folder, *_entry(annotate.entry), annotate.values]


@v.form.register
def _(merge: c.Merge) -> list[v.Field]:
    return ["MERGE", v.number_32(merge.mailbox), *_entry(merge.entry), merge.rows]


@v.form.register
def _(remote: c.Remote) -> list[v.Field]:
    return [
        "REMOTE",
        v.number_32(remote.mailbox),
        *_entry(remote.entry),
        v.string(remote.name),
    ]
