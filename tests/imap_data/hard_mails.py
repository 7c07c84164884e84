"""A hundred difficult messages: nested, malformed, in many charsets, signed, encrypted, with attachments of every kind.

Each is as small as shows its difficulty. All lines end in CRLF, except where the line end is the difficulty.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from quopri import encodestring

SENDER = "From: Ann <ann@example.org>"
PNG = binascii.b2a_base64(bytes(range(200))).strip()
UUENCODED = b"begin 644 a.txt\r\n#86)C\r\n`\r\nend\r\n"
TNEF = binascii.b2a_base64(b"\x78\x9f\x3e\x22" + bytes(60)).strip()
PGP = b"-----BEGIN PGP MESSAGE-----\r\n\r\nhQEMA0000000000000AQf/abcd\r\n=abcd\r\n-----END PGP MESSAGE-----\r\n"
SIGNATURE = b"-----BEGIN PGP SIGNATURE-----\r\n\r\niQEzBAEBCAAd\r\n=abcd\r\n-----END PGP SIGNATURE-----\r\n"


def lines(*fields: str | bytes) -> bytes:
    return b"".join((one if isinstance(one, bytes) else one.encode()) + b"\r\n" for one in fields)


def mail(content: bytes, *fields: str | bytes) -> bytes:
    """Return a message or a part with these header fields."""
    return lines(*fields) + b"\r\n" + content


def parts(kind: str, *bodies: bytes, parameters: str = "", boundary: str = "b", fields: Iterable[str] = ()) -> bytes:
    """Return a multipart of these parts, with its header."""
    content = b"".join(b"--%b\r\n%b\r\n" % (boundary.encode(), body) for body in bodies)
    declared = f'Content-Type: multipart/{kind}; boundary="{boundary}"{parameters}'
    return mail(content + b"--%b--\r\n" % boundary.encode(), "MIME-Version: 1.0", *fields, declared)


def text(content: bytes = b"Hello\r\n", kind: str = "plain; charset=us-ascii", *fields: str | bytes) -> bytes:
    return mail(content, f"Content-Type: text/{kind}", *fields)


def file(name: str = "; filename=a.png", kind: str = "image/png", *fields: str) -> bytes:
    return mail(
        PNG,
        f"Content-Type: {kind}",
        "Content-Transfer-Encoding: base64",
        f"Content-Disposition: attachment{name}",
        *fields,
    )


def nested(depth: int) -> bytes:
    """Return multiparts within each other."""
    found = text()
    for level in range(depth):
        found = parts("mixed", found, text(b"%d\r\n" % level), boundary=f"level-{level}-")
    return found


def forwarded(depth: int) -> bytes:
    found = text(b"Innermost\r\n", "plain", "Subject: innermost")
    for level in range(depth):
        found = mail(found, f"Subject: level {level}", SENDER, "Content-Type: message/rfc822")
    return found


def in_charset(charset: str, words: str, codec: str | None = None) -> bytes:
    encoded = words.encode(codec or charset)
    subject = f"Subject: =?{charset}?B?{binascii.b2a_base64(encoded, newline=False).decode()}?="
    quoted = encodestring(encoded).replace(b"\n", b"\r\n")
    return mail(
        quoted + b"\r\n",
        subject,
        SENDER,
        f"Content-Type: text/plain; charset={charset}",
        "Content-Transfer-Encoding: quoted-printable",
    )


def addresses(value: str | bytes, name: bytes = b"To") -> bytes:
    return mail(b"Hello\r\n", SENDER, name + b": " + (value if isinstance(value, bytes) else value.encode()))


_NESTED = {
    "mixed": parts("mixed", text(), file()),
    "alternative": parts("alternative", text(), text(b"<p>Hello\r\n", "html; charset=utf-8")),
    "related": parts(
        "related",
        text(b"<img src=cid:1>\r\n", "html"),
        file("", "image/png", "Content-ID: <1@x>"),
        parameters='; type="text/html"; start="<0@x>"',
    ),
    "parallel": parts("parallel", text(), text()),
    "digest": parts("digest", mail(mail(b"One\r\n", "Subject: one", SENDER)), mail(mail(b"Two\r\n", "Subject: two"))),
    "five levels": nested(5),
    "twenty levels": nested(20),
    "forwarded": parts("mixed", text(), mail(mail(b"Old\r\n", SENDER, "Subject: old"), "Content-Type: message/rfc822")),
    "forwarded three times": forwarded(3),
    "forwarded multipart": mail(parts("mixed", text(), file()), "Content-Type: message/rfc822", SENDER),
    "forwarded in base64": mail(PNG, "Content-Type: message/rfc822", "Content-Transfer-Encoding: base64", SENDER),
    "hundred parts": parts("mixed", *[text(b"%d\r\n" % n) for n in range(100)]),
    "boundaries that begin alike": parts("mixed", parts("mixed", text(), boundary="bb"), text(), boundary="b"),
    "inner boundary begins like the outer": parts(
        "mixed", parts("mixed", text(), boundary="b-b"), text(), boundary="b-"
    ),
    "delivery report": parts(
        "report",
        text(b"Failed\r\n"),
        mail(b"Reporting-MTA: dns; x\r\n\r\nAction: failed\r\n", "Content-Type: message/delivery-status"),
        mail(b"Subject: lost\r\n\r\n", "Content-Type: text/rfc822-headers"),
        parameters="; report-type=delivery-status",
    ),
    "read receipt": parts(
        "report",
        text(),
        mail(b"Disposition: manual-action; displayed\r\n", "Content-Type: message/disposition-notification"),
        parameters='; report-type="disposition-notification"',
    ),
    "external body": mail(
        b"Content-Type: image/gif\r\n\r\n", "Content-Type: message/external-body; access-type=URL;", ' url="ftp://x/y"'
    ),
    "partial": mail(b"part\r\n", 'Content-Type: message/partial; id="a@b"; number=1; total=2'),
    "appointment": parts(
        "alternative",
        text(),
        mail(b"BEGIN:VCALENDAR\r\n", "Content-Type: text/calendar; method=REQUEST; charset=UTF-8"),
    ),
}

_MALFORMED = {
    "empty": b"",
    "only an empty line": b"\r\n",
    "header without an end": b"Subject: x\r\n",
    "header without a line end": b"Subject: x",
    "no header": b"\r\nHello\r\n",
    "text without a header": b"Hello there\r\nagain\r\n",
    "line feeds alone": parts("mixed", text(), file()).replace(b"\r\n", b"\n"),
    "mixed line ends": parts("mixed", text(), file()).replace(b"\r\n--b", b"\n--b"),
    "no end": parts("mixed", text(), text()).replace(b"--b--\r\n", b""),
    "no parts": mail(b"nothing here\r\n", "Content-Type: multipart/mixed; boundary=b"),
    "no boundary": mail(b"--b\r\n\r\nx\r\n--b--\r\n", "Content-Type: multipart/mixed"),
    "only an end": mail(b"--b--\r\n", "Content-Type: multipart/mixed; boundary=b"),
    "empty parts": parts("mixed", b"", b"\r\n", b"\r\n\r\n"),
    "delimiter twice": parts("mixed", b"--b\r\n" + text()),
    "preamble and epilogue": parts("mixed", text()).replace(b"\r\n\r\n--b\r\n", b"\r\n\r\nbefore\r\n--b\r\n", 1)
    + b"after\r\n",
    "spaces after the delimiter": parts("mixed", text(), text()).replace(b"--b\r\n", b"--b  \t\r\n"),
    "boundary with signs": parts("mixed", text(), boundary="=_'()+,-./:?x"),
    "boundary unquoted": mail(b"--=_x\r\n\r\nA\r\n--=_x--\r\n", "Content-Type: multipart/mixed; boundary==_x"),
    "two content types": mail(b"x\r\n", "Content-Type: text/html", "Content-Type: text/plain"),
    "content type without a subtype": mail(b"x\r\n", "Content-Type: text"),
    "content type is nonsense": mail(b"x\r\n", "Content-Type: !!!"),
    "content type is empty": mail(b"x\r\n", "Content-Type:"),
    "content type with comments": mail(b"x\r\n", "Content-Type: text/plain (a) ; charset=utf-8 (b)"),
    "parameter without a value": mail(b"x\r\n", "Content-Type: text/plain; charset; format=flowed"),
    "parameter with an open quote": mail(b"x\r\n", 'Content-Type: text/plain; name="abc'),
    "parameter with escapes": mail(b"x\r\n", r'Content-Type: image/png; name="a\"b\\c.png"'),
    "parameters with spaces around": mail(b"x\r\n", "Content-Type: image/png ; name = a.png"),
    "semicolons only": mail(b"x\r\n", "Content-Type: text/plain;;;"),
    "encoding unknown": mail(b"x\r\n", "Content-Transfer-Encoding: x-own"),
    "encoding with a comment": mail(b"eA==\r\n", "Content-Transfer-Encoding: base64 (y)"),
    "encoding empty": mail(b"x\r\n", "Content-Transfer-Encoding:"),
    "space before the colon": mail(b"x\r\n", "Subject : spaced", "Content-Type : text/html"),
    "folded everywhere": mail(
        b"x\r\n", "Subject: a\r\n b\r\n\tc", "Content-Type:\r\n text/plain;\r\n\tcharset=\r\n utf-8"
    ),
    "mbox line": mail(b"x\r\n", "From ann@example.org Mon Jan  1 00:00:00 2001", "Subject: s"),
    "capitals": mail(
        b"x\r\n", "SUBJECT: S", "CONTENT-TYPE: TEXT/PLAIN; CHARSET=UTF-8", "CONTENT-TRANSFER-ENCODING: 8BIT"
    ),
}

_OCTETS = {
    "8-bit header": mail(b"x\r\n", b"Subject: Gr\xfc\xdfe", b"From: J\xf6rg <j@example.org>"),
    "UTF-8 header": mail(b"x\r\n", "Subject: Grüße", "From: Jörg <jörg@exämple.org>"),
    "8-bit file name": mail(b"x\r\n", b'Content-Disposition: attachment; filename="\xe4.txt"'),
    "8-bit body": text(b"Gr\xfc\xdfe\r\n", "plain; charset=iso-8859-1", "Content-Transfer-Encoding: 8bit"),
    "binary body": mail(bytes(range(1, 256)), "Content-Transfer-Encoding: binary", "Content-Type: application/x"),
    "NUL in the body": text(b"a\0b\r\n"),
    "long lines": text(b"x" * 5000 + b"\r\n", "plain", "Subject: " + "y" * 3000),
    "huge header": mail(b"x\r\n", *[f"X-Filler-{n}: {'z' * 70}" for n in range(1000)], "Subject: after a huge header"),
    "many addresses": addresses(", ".join(f"user{n}@example.org" for n in range(300))),
}

_CHARSETS = {
    f"in {charset}": in_charset(charset, words)
    for charset, words in {
        "utf-8": "Grüße 日本語 😀",
        "iso-8859-1": "Grüße",
        "iso-8859-2": "Žluťoučký",
        "iso-8859-15": "10 €",
        "windows-1251": "Привет",
        "koi8-r": "Привет",
        "gb2312": "你好",
        "gb18030": "你好",
        "big5": "你好",
        "iso-2022-jp": "こんにちは",
        "shift_jis": "こんにちは",
        "euc-kr": "안녕",
        "windows-1256": "مرحبا",
        "utf-7": "Grüße",
        "tis-620": "สวัสดี",
    }.items()
}

_FILE_NAMES = {
    "name in pieces": file("; filename*0=long; filename*1=name.png"),
    "name in encoded pieces": file("; filename*0*=utf-8''%e4%bd%a0; filename*1*=%e5%a5%bd; filename*2=.png"),
    "name encoded": file("; filename*=iso-8859-1'de'%e4.png"),
    "name in both forms": file("; filename=a.png; filename*=utf-8''%c3%a4.png"),
    "name in pieces out of order": file("; filename*1=b.png; filename*0=a"),
    "name with a piece missing": file("; filename*0=a; filename*2=b.png"),
    "name as an encoded word": file('; filename="=?utf-8?B?w6QucG5n?="'),
    "name twice": file("; filename=a.png; filename=b.png", "image/png; name=c.png"),
    "encoded words side by side": mail(b"x\r\n", "Subject: =?utf-8?Q?a?= =?utf-8?Q?b?=\r\n =?iso-8859-1?Q?=E4?="),
    "encoded words that are wrong": mail(b"x\r\n", "Subject: =?utf-8?X?a?= =?utf-8?B?!!?= =?none?Q?x?= =?utf-8?Q?a"),
    "encoded word as a name": addresses("=?utf-8?Q?J=C3=B6rg?= <j@example.org>"),
}

_KINDS = {
    "uuencoded": mail(b"See below\r\n" + UUENCODED, "Subject: old file", SENDER),
    "uuencoded by its header": mail(UUENCODED, "Content-Type: application/x", "Content-Transfer-Encoding: x-uuencode"),
    "TNEF": parts(
        "mixed",
        text(),
        mail(TNEF, 'Content-Type: application/ms-tnef; name="winmail.dat"', "Content-Transfer-Encoding: base64"),
    ),
    "apple double": parts(
        "appledouble",
        mail(PNG, "Content-Type: application/applefile", "Content-Transfer-Encoding: base64"),
        file("; filename=a.png"),
    ),
    "binhex": mail(
        b"(This file must be converted with BinHex 4.0)\r\n:abc:\r\n",
        'Content-Type: application/mac-binhex40; name="a"',
    ),
    "PGP signed": parts(
        "signed",
        text(),
        mail(SIGNATURE, "Content-Type: application/pgp-signature"),
        parameters='; micalg=pgp-sha256; protocol="application/pgp-signature"',
    ),
    "PGP encrypted": parts(
        "encrypted",
        mail(b"Version: 1\r\n", "Content-Type: application/pgp-encrypted"),
        mail(PGP, "Content-Type: application/octet-stream"),
        parameters='; protocol="application/pgp-encrypted"',
    ),
    "PGP inline": text(PGP),
    "S/MIME signed": parts(
        "signed",
        text(),
        file("; filename=smime.p7s", "application/pkcs7-signature; name=smime.p7s"),
        parameters='; protocol="application/pkcs7-signature"; micalg=sha-256',
    ),
    "S/MIME encrypted": file(
        "; filename=smime.p7m", "application/pkcs7-mime; smime-type=enveloped-data; name=smime.p7m"
    ),
    "signed forwarded": parts(
        "mixed",
        text(),
        mail(
            parts("signed", text(), mail(SIGNATURE, "Content-Type: application/pgp-signature"), boundary="s"),
            "Content-Type: message/rfc822",
        ),
    ),
    "all extension data": mail(
        b"x\r\n",
        "Content-Type: image/png",
        "Content-MD5: Q2hlY2s=",
        "Content-Language: en, de",
        "Content-Location: http://x/y",
        "Content-ID: <1@x>",
        "Content-Description: a thing",
        "Content-Disposition: inline; filename=x; size=3",
    ),
}

_ADDRESSES = {
    "group": addresses("Friends: ann@example.org, Bob <bob@example.org>;"),
    "empty group": addresses("undisclosed-recipients:;"),
    "route": addresses("<@a.example,@b.example:ann@example.org>"),
    "quoted local part": addresses('"a b\\"c"@example.org, "x@y" <z@example.org>'),
    "comments": addresses("ann@example.org (Ann), (c) bob (d) @ (e) example.org"),
    "no host": addresses("ann, <bob>, @example.org, <>"),
    "literal host": addresses("ann@[192.0.2.1]"),
    "unclosed": addresses("Ann <ann@example.org, Bob <bob@example.org>"),
    "all address fields": mail(
        b"x\r\n",
        SENDER,
        "Sender: s@example.org",
        "Reply-To: r@example.org",
        "To: t@example.org",
        "Cc: c@example.org",
        "Bcc: b@example.org",
        "In-Reply-To: <0@x>",
        "Message-ID: <1@x>",
        "Date: Mon, 1 Jan 2001 00:00:00 +0000",
    ),
    "fields twice": mail(b"x\r\n", "To: a@x", "To: b@x", "Subject: one", "Subject: two", "Date: d1", "Date: d2"),
    "empty fields": mail(b"x\r\n", "To:", "Subject:", "Date:", "Message-ID:", "From:"),
}

HARD_MAILS = {**_NESTED, **_MALFORMED, **_OCTETS, **_CHARSETS, **_FILE_NAMES, **_KINDS, **_ADDRESSES}
"""The messages by name."""
