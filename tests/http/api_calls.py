"""Requests that show what each route of the HTTP door does, in the order of docs/http-api.md.

Each is made of a real node, and a request may need what those before it have done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import msgpack

MESSAGE = (
    b"From: bob@example.org\r\nTo: alice@example.org\r\nMessage-ID: <1@example.org>\r\nSubject: Hello\r\n\r\nHello!\r\n"
)
BATCH = msgpack.packb(
    [(1_795_132_800_000, ["\\Seen"], MESSAGE.replace(b"<1@", b"<2@"), 40), (None, [], MESSAGE + b"Again\r\n")]
)
HASH = (
    "{SHA512-CRYPT}$6$abcdefgh$yVfUwsw5T.JApa8POvClA1pQ5peiq97DUNyXCZN5IrF.BMSkiaLQ5kvpuEm/VQ1Tvh/KV2TcaWh8qinoW5dhA1"
)

UIDVALIDITY = 1795781628
"""That of INBOX, as the page shows it; the node's own takes its place."""


@dataclass(frozen=True)
class Call:
    """A request, and the answer's status with its meaning."""

    target: str
    status: int
    when: str
    body: bytes = field(default=b"", repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    until_ended: bool = False  # ask again while a task runs


@dataclass(frozen=True)
class Shown:
    """A route with what the page says of it; the answer to the first call is shown.

    `body`: what a request's body is. `told`: what the handler's docstring leaves out. `is_long`: the answer would fill
    the page.
    """

    method: str
    path: str
    calls: tuple[Call, ...]
    body: str = ""
    told: str = ""
    is_long: bool = False


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


READY = (
    Shown("POST", "/api/v1/users", (Call("/api/v1/users", 201, "", _json({"lines": [f"carol:{HASH}"]})),)),
    Shown("GET", "/healthz", (Call("/healthz", 200, ""),)),
)
"""What is asked before: without a user a node is not healthy."""


@dataclass(frozen=True)
class Group:
    """A section of the page."""

    title: str
    told: str
    routes: tuple[Shown, ...]


def _task(name: str, options: object, body: str) -> tuple[Shown, ...]:
    path = f"/api/v1/{name}"
    return (
        Shown("POST", path, (Call(path, 202, "the task runs; this is its first report", _json(options)),
                             Call(path, 400, "an option is unknown or makes no sense", b'{"colour": 1}')), body),
        Shown("GET", path, (Call(f"{path}?wait=true", 200, "the report", until_ended=True),)),
        Shown("DELETE", path, (Call(path, 200, "the last report; of a task that had ended, as it was"),)),
    )  # fmt: skip


_USER = "/api/v1/users/alice"
_FOLDER = f"{_USER}/folders/Archive%2F2026"
_NO_USER = "there is no such user"

GROUPS = (
    Group("Health and metrics", "For load balancers, whatever restarts processes, and Prometheus.", (
        Shown("GET", "/healthz", (Call("/healthz", 200, "clients are served well here; 503: they are not"),),
              told="Those who send no token, where others need one, get no `reasons`."),
        Shown("GET", "/livez", (Call("/livez", 200, "the process runs"),)),
        Shown("GET", "/metrics", (Call("/metrics", 200, "the [series](monitoring.md#the-node-itself) as text"),)),
    )),
    Group("The node", "", (
        Shown("GET", "/api/v1/status", (Call("/api/v1/status", 200, "the status"),),
              told="[Command line](command-line.md#the-columns-of-status) says what the figures mean. Times are in"
                   " milliseconds since 1970, `digest` is equal at nodes that show the same, an entry's name is"
                   " `ORIGIN SEQ`. `null` stands for what the node does not know."),
        Shown("GET", "/api/v1/events", (Call("/api/v1/events", 200, "a stream of events"),),
              told="An event `node` has `status` (as above), `reasons` (as of `/healthz`) and `task` (the one that runs"
                   " or ended last, or null). It comes at once, then when something has changed, and every five seconds"
                   " at least. An event `problem` has `detail`, the reason why there is no overview now. The stream"
                   " ends after ten minutes, or when the token no longer holds; ask again."),
        Shown("GET", "/api/v1/trace", (
            Call("/api/v1/trace?peer=dc2&command=SAVE,ACK", 200, "a stream of events"),
            Call("/api/v1/trace?peer=dc9", 404, "there is no such peer"),
            Call("/api/v1/trace?command=SAEV", 400, "there is no such command"),
        ), told="Events `command` have what `replicator trace` [prints](command-line.md#json-output); `left_out` tells"
                " how many were left out because they were not read fast enough, `link_ended` that the link to a peer"
                " has ended, and `end` why the stream ends: with `peer`, when that link has. A name stands for"
                " those that begin with it and a hyphen, too: `FETCH` for `FETCH-UID`. Replies to the commands that are"
                " named come with them. A comment comes every second if nothing else does. 409: there is no link to"
                " the peer now; 503: four traces run already."),
        Shown("GET", "/api/v1/openapi.json", (Call("/api/v1/openapi.json", 200, "what this page says, for programs"),),
              told="OpenAPI 3.1, with the types of all members.", is_long=True),
        Shown("POST", "/api/v1/checkpoint", (Call("/api/v1/checkpoint", 200, "done; 202: it takes longer than 30 s"),),
              told="`outcome` is `written`, `unchanged`, `waiting` (until the last ones are in force) or `running`."),
        Shown("POST", "/api/v1/reload", (Call("/api/v1/reload", 200, "the certificates that are used now"),),
              told="409: one of them cannot be used, and all stay as they were."),
        Shown("POST", "/api/v1/drain", (Call("/api/v1/drain", 200, "since when the node is drained"),),
              told="`/healthz` answers 503, so that balancers send new clients elsewhere. A restart ends that."),
        Shown("DELETE", "/api/v1/drain", (Call("/api/v1/drain", 200, "the drain has ended"),)),
        Shown("POST", "/api/v1/stop", (
            Call("/api/v1/stop", 202, "the node ends now; other nodes become masters"),
        ), told="`managed`: systemd has started the node, with NOTIFY_SOCKET (our unit does), and may start it anew;"
                   " other supervisors may do so, too, and are not known."),
        Shown("POST", "/api/v1/search/rebuild",
              (Call("/api/v1/search/rebuild", 202, "what there was; the work goes on in the background"),),
              told="409: this node keeps no [search texts](operations.md#searching)."),
    )),
    Group("Users", "All but the purge and those that only read need"
          ' [`users.source = "cluster"`](configuration.md#users); nodes whose users come from a file or a server answer'
          " them with 409. Passwords never come here, only their hashes. An answer means that the change is on the"
          " disks of `durability.copies` nodes, and in force at this one.", (
        Shown("POST", "/api/v1/users", (
            Call("/api/v1/users", 201, "they are added",
                 _json({"lines": [f"alice:{HASH}::::::cluster=mail", f"bob:{HASH}"]})),
            Call("/api/v1/users", 409, "one exists already", _json({"lines": [f"alice:{HASH}"]})),
            Call("/api/v1/users", 400, "a line is none of a passwd-file", _json({"lines": ["alice"]})),
        ), "`lines`: 1 to 200 lines of a passwd-file, all added or none; `replace` (false): users"
           " who exist get the new lines"),
        Shown("GET", "/api/v1/users", (Call("/api/v1/users", 200, "the names, wherever users come from"),)),
        Shown("GET", "/api/v1/users/{user}", (
            Call("/api/v1/users/alice%40example.org", 200, "the user, and what the user's line says"),
            Call("/api/v1/users/eve", 404, _NO_USER),
        )),
        Shown("GET", "/api/v1/accounts", (Call("/api/v1/accounts", 200, "what the users' lines say"),)),
        Shown("PUT", "/api/v1/users/{user}/password", (
            Call("/api/v1/users/bob/password", 200, "it is in force", _json({"hash": HASH})),
            Call("/api/v1/users/eve/password", 404, _NO_USER, _json({"hash": HASH})),
        ), "`hash`: the hash with its scheme, as in a passwd-file"),
        Shown("PUT", "/api/v1/users/{user}/disabled", (
            Call("/api/v1/users/bob/disabled", 200, "it is in force. `other_names` open the mail of `mail_user`, too,"
                 " and stay as they are", _json({"disabled": True})),
            Call("/api/v1/users/eve/disabled", 404, _NO_USER, _json({"disabled": True})),
        ), "`disabled`: true keeps the user from logging in, false ends that"),
        Shown("PUT", "/api/v1/users/{user}/name", (
            Call("/api/v1/users/bob/name?to=robert", 200, "it is in force; `mail_user`: whose mail the new name opens"),
            Call("/api/v1/users/eve/name?to=robert", 404, _NO_USER),
            Call("/api/v1/users/robert/name?to=alice", 409, "somebody has the new name, or opens the mail of its user"),
            Call("/api/v1/users/robert/name?to=bob", 200, "so is this: the user has the old name again"),
        ), told="The [mail](operations.md#users) stays that of the first name. Unless all nodes are linked, the"
                " answer is 503."),
        Shown("POST", "/api/v1/users/{user}/try-login", (
            Call("/api/v1/users/bob/try-login", 200, "`reasons`: why a client would not get in; none: it would."
                 " `answer`: what a [server that knows the users](operations.md#users-of-an-ldap-server) said",
                 _json({"password": "secret"})),
            Call("/api/v1/users/bob/try-login", 400, "there is no password", _json({})),
        ), "`password`: neither kept nor logged; `address`: the client's IP address (any)",
              told="It counts as nobody's attempt."),
        Shown("GET", "/api/v1/penalties", (Call("/api/v1/penalties", 200, "who is slowed down now"),)),
        Shown("DELETE", "/api/v1/penalties", (
            Call("/api/v1/penalties?of=bob", 200, "those of a user or an address end; if none is named, all"),
        )),
        Shown("DELETE", "/api/v1/users/{user}", (
            Call("/api/v1/users/bob", 200, "the user is gone; the mail, that of `mail_user`, stays, and `other_names`"
                 " open it"),
            Call("/api/v1/users/eve", 404, _NO_USER),
        )),
        Shown("POST", "/api/v1/users/{user}/purge", (
            Call("/api/v1/users/bob/purge", 200, "so much is removed; if `more` is true, ask again"),
            Call("/api/v1/users/alice/purge", 409, "this is a user: delete the user first"),
        ), told="503: a node cannot be reached, which may have more of this mail; nothing is removed."),
        Shown("GET", "/api/v1/users/{user}/quota", (
            Call(f"{_USER}/quota", 200, "usage and limits; `null`: no limit"),
            Call("/api/v1/users/eve/quota", 404, _NO_USER),
        )),
    )),
    Group("Folders and masters", "", (
        Shown("PUT", "/api/v1/users/{user}/folders/{name}", (
            Call(_FOLDER, 201, "it is created"), Call(_FOLDER, 200, "it existed"),
            Call(f"{_USER}/folders/Old?new=true", 201, "it is created"),
            Call(f"{_USER}/folders/Old?new=true", 409, "it existed"),
            Call(f"{_USER}/folders/Gesendet?use=%5CSent", 201, "it is created, for sent mail"),
            Call(f"{_USER}/folders/Alles?use=%5CAll", 400, "there is no such use"),
            Call("/api/v1/users/eve/folders/Archive", 404, _NO_USER),
        )),
        Shown("GET", "/api/v1/users/{user}/folders", (
            Call(f"{_USER}/folders", 200, "the folders, and subscriptions to names of none"),
            Call("/api/v1/users/eve/folders", 404, _NO_USER),
        )),
        Shown("PUT", "/api/v1/users/{user}/folders/{name}/name", (
            Call(f"{_USER}/folders/Old/name?to=New", 200, "it has the new name, and so have those below it"),
            Call(f"{_USER}/folders/Old/name?to=New", 404, "there is no such folder"),
            Call(f"{_USER}/folders/New/name?to=INBOX", 409, "there is a folder of the new name"),
        )),
        Shown("PUT", "/api/v1/users/{user}/folders/{name}/uidvalidity", (
            Call(f"{_USER}/folders/New/uidvalidity?uidvalidity=1700000000", 200, "the folder has it"),
            Call(f"{_USER}/folders/Archive/uidvalidity?uidvalidity=1700000000", 409,
                 "another folder has, or has had, it, or the folder has had mail"),
            Call(f"{_USER}/folders/None/uidvalidity?uidvalidity=1", 404, "there is no such folder"),
        ), told="For a folder whose mail comes from another server, so that clients keep their caches. Without the"
                " parameter, the folder has its own again."),
        Shown("PUT", "/api/v1/users/{user}/folders/{name}/numbers", (
            Call(f"{_USER}/folders/New/numbers?uidnext=40&modseq=900", 200, "it has at least these numbers"),
            Call(f"{_USER}/folders/New/numbers?uidnext=0", 400, "a number makes no sense"),
            Call(f"{_USER}/folders/None/numbers?uidnext=40", 404, "there is no such folder"),
        ), told="For a folder whose mail comes from another server: raise `modseq` before its mail comes, with"
                " `uidnext=1`, and `uidnext` afterwards. Numbers only rise; UIDs below UIDNEXT that no mail has are"
                " never used."),
        Shown("DELETE", "/api/v1/users/{user}/folders/{name}", (
            Call(f"{_USER}/folders/New", 200, "it is deleted with its mail; those below it stay"),
            Call(f"{_USER}/folders/New", 404, "there is no such folder"),
        ), told="`replicator undelete` brings the mail back for `content.keep_expunged`."),
        Shown("PUT", "/api/v1/users/{user}/subscriptions/{name}", (
            Call(f"{_USER}/subscriptions/Archive", 200, "the user is subscribed to it"),
        )),
        Shown("DELETE", "/api/v1/users/{user}/subscriptions/{name}", (
            Call(f"{_USER}/subscriptions/Archive", 200, "the user is not subscribed to it"),
        )),
        Shown("GET", "/api/v1/mailboxes", (
            Call("/api/v1/mailboxes?user=alice", 200, "the mailboxes, of all users if none is named"),
            Call("/api/v1/mailboxes?user=eve", 404, _NO_USER),
        )),
        Shown("PUT", "/api/v1/users/{user}/folders/{name}/master", (
            Call(f"{_FOLDER}/master?node=dc1", 200, "that node is the master now"),
            Call(f"{_USER}/folders/None/master", 404, "there is no such folder"),
            Call(f"{_FOLDER}/master?node=dc9", 404, "no such node is configured"),
        )),
        Shown("GET", "/api/v1/users/{user}/folders/{name}/master", (
            Call(f"{_FOLDER}/master", 200, "the master; `null`: this node has not needed it since the last election"),
            Call(f"{_USER}/folders/None/master", 404, "there is no such folder"),
        )),
    )),
    Group("Sessions", "Those of mail clients and MTAs at this node.", (
        Shown("GET", "/api/v1/sessions", (Call("/api/v1/sessions", 200, "the sessions that have all that is named"),)),
        Shown("DELETE", "/api/v1/sessions", (
            Call("/api/v1/sessions?user=alice", 200, "those that are ended thereby"),
            Call("/api/v1/sessions", 400, "nothing is named"),
        )),
    )),
    Group("Messages", "How `replicator import` brings mail in. OK means what it means to a mail client: the mail is on"
          " the disks of `durability.copies` nodes.", (
        Shown("POST", "/api/v1/users/{user}/messages", (
            Call(f"{_USER}/messages?flags=%5CSeen&received_ms=1795132800000", 201, "it is stored", MESSAGE),
            Call(f"{_USER}/messages?mailbox=None", 404, "there is no such folder", MESSAGE),
        ), "the message, stored octet for octet, 64 MiB at most", "`uid` null: this node does not show it yet."),
        Shown("POST", "/api/v1/users/{user}/messages/batch", (
            Call(f"{_USER}/messages/batch", 201, "all are stored, in this order", BATCH),
            Call(f"{_USER}/messages/batch", 400, "this is no batch; nothing is stored", b"\xc1"),
        ), "MessagePack: an array of 1 to 1000 messages, each `[received_ms or nil, [flag, ...], body, uid or nil, guid"
           " or nil]` (the last two may be left out; a GUID has 16 octets), 64 MiB in all"),
        Shown("GET", "/api/v1/users/{user}/messages", (
            Call(f"{_USER}/messages?after=1", 200, "5000 messages at most; if `more` is true, ask after the last UID"),
            Call(f"{_USER}/messages?mailbox=None", 404, "there is no such folder"),
        )),
        Shown("GET", "/api/v1/users/{user}/folders/{name}/mail", (
            Call(f"{_USER}/folders/INBOX/mail", 200, "a stream of MessagePack"),
            Call(f"{_USER}/folders/INBOX/mail?uid=999", 404, "there is no such mail"),
        ), told="Each mail begins with an array `[uid, [flag, ...], received_ms, size_bytes, sha256]`; binary values"
                " follow that are together the mail. A string instead of them, or of the rest of them, says why the"
                " body cannot be read. Nil is the end: without it the answer was broken off."),
        Shown("GET", "/api/v1/users/{user}/folders/{name}/chosen", (
            Call(f"{_USER}/folders/INBOX/chosen?uids=2:*&before_ms=1795132800001", 200,
                 "what would be expunged; if `after` is not null, ask again after it"),
            Call(f"{_USER}/folders/None/chosen", 404, "there is no such folder"),
        ), told="`unchecked`: so many could not be looked at for their Message-ID."),
        Shown("POST", "/api/v1/users/{user}/folders/{name}/expunge", (
            Call(f"{_USER}/folders/INBOX/expunge", 200, "it is gone, durably",
                 _json({"node": "dc1", "uidvalidity": UIDVALIDITY, "uids": "3"})),
            Call(f"{_USER}/folders/INBOX/expunge", 409, "the look was at another node, or another folder has got"
                 " this name since, or a merge has changed all UIDs; nothing is removed",
                 _json({"node": "dc2", "uidvalidity": UIDVALIDITY, "uids": "3"})),
        ), "`node`, `uidvalidity` and `uids` as a look has told them, all required; 1000 UIDs at most",
              "`missing`: so many UIDs named nothing any more. `replicator undelete` brings the mail back until"
              " `until_ms`."),
        Shown("POST", "/api/v1/users/{user}/folders/{name}/changes", (
            Call(f"{_USER}/folders/INBOX/changes", 200, "those that had the flags `was` are changed",
                 _json({"uidvalidity": UIDVALIDITY, "uids": "1:2", "was": ["\\Seen"], "flags": ["\\Seen", "A"]})),
            Call(f"{_USER}/folders/INBOX/changes", 409, "another folder has got this name; nothing is changed",
                 _json({"uidvalidity": 1, "uids": "1", "was": [], "flags": None})),
        ), "`uidvalidity`, `uids` (1000 at most), `was`, the flags that the mail is expected to have, and `flags`,"
           " those that it is to have; null: it is expunged"),
    )),
    Group("Stories", "What happened to mailboxes and mails, as this node's log tells it, also of deleted folders"
          " and of users who are gone. Members are told at [JSON output](command-line.md#json-output).", (
        Shown("GET", "/api/v1/users/{user}/folders/{name}", (
            Call(f"{_USER}/folders/INBOX", 200, "all that the node knows"),
            Call(f"{_USER}/folders/None", 404, "the node knows nothing of such a folder"),
        )),
        Shown("GET", "/api/v1/users/{user}/folders/{name}/log", (
            Call(f"{_USER}/folders/INBOX/log?last=1", 200, "the history, the newest entry first"),
            Call(f"{_USER}/folders/INBOX/log?last=0", 400, "a parameter makes no sense"),
        )),
        Shown("GET", "/api/v1/users/{user}/log", (Call(f"{_USER}/log?last=1", 200, "the history of the folder tree"),)),
        Shown("GET", "/api/v1/users/{user}/folders/{name}/story", (
            Call(f"{_USER}/folders/INBOX/story?uid=1", 200, "the story; without `lives`: nothing is known of the mail"),
            Call(f"{_USER}/folders/INBOX/story", 400, "none, or more than one, of the parameters is there"),
        )),
    )),
    Group("Tasks", "A node runs one task at a time: POST answers 409 while any runs, and GET 404 if none of its kind"
          " has run since the node started. With a token, an inventory may be written below [`http.directories`]"
          "(configuration.md#http) only (403). Every member of a body may be left out unless it says *required*.", (
        *_task("check", {"repair": False}, "`repair` (false): mend what is wrong; `rate`: rows a second at most"),
        *_task("scrub", {"rate": 5000}, "`rate`: bodies and rows a second at most"),
        *_task("resync", {"user": "alice", "mailbox": "INBOX", "dry_run": True},
               "`user` (all), `mailbox` (all of the user's), `peer` (all that can be reached), `dry_run` (false):"
               " change nothing; `rate`: rows a second at most"),
        *_task("undelete", {"user": "alice", "mailbox": "INBOX", "dry_run": True},
               "`user` and `mailbox`, required; `since_ms`: the earliest time of the expunge; `dry_run` (false)"),
        *_task("inventory", {"to": "DIRECTORY/inventory"},
               "`to`, required: an absolute path on the node's machine, or `s3://BUCKET/PREFIX`; `endpoint` of that"
               " bucket; `overwrite` (false): replace an unfinished inventory"),
        *_task("apply", {"mailboxes": [], "dry_run": True},
               "`mailboxes`: at most 1000 of a [repair plan](repair.md), with `user`, `mailbox`, `uidvalidity`,"
               " `heads`, `damaged`; `dry_run` (false); `rate`: mailboxes a second at most; `texts` (false): end only"
               " when the bodies of new messages are here, or no more arrive"),
    )),
    Group("Proxies of mail clients", "The question of nginx's mail module, for [sites of several"
          " clusters](scaling.md).", (
        Shown("GET", "/proxy/login", (
            Call("/proxy/login", 200, "the answer, whether the user may log in or not",
                 headers=(("Auth-Method", "none"), ("Auth-User", "alice"), ("Auth-Protocol", "imap"))),
            Call("/proxy/login", 400, "a header makes no sense", headers=(("Auth-Protocol", "pop3"),)),
        ), told="The question is in headers: `Auth-Method` (`plain`, or `none` to ask for the server alone),"
                " `Auth-User`, `Auth-Pass`, `Auth-Protocol` (`imap` or `lmtp`) and `Client-IP`; user and password are"
                " percent-encoded. So is the answer: `Auth-Status` is `OK`, with `Auth-Server` and `Auth-Port`, or the"
                " reason for the client, with `Auth-Wait` in seconds. 404: no `[[cluster]]` is configured."),
    )),
    Group("The page for people", "[The page](monitoring.md#the-page) asks the API for what it shows.", (
        Shown("GET", "/", (Call("/", 200, "the page"),)),
        Shown("GET", "/page/{name}", (
            Call("/page/page.css", 200, "the file"), Call("/page/none", 404, "the page has no such file"),
        )),
    )),
)  # fmt: skip
