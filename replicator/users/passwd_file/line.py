"""One line of a passwd-file, `name:{SCHEME}hash[:other fields]`: parsed, checked, and changed.

The name is that of a log-in, and of the user whose mail it opens, unless the word `user=` names that user.

An invalid line disables one user's password, or that user's own quota, and affects no one else: the user still has
mail, and the problem is reported. Names that differ only in case are one user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from replicator.users import scram
from replicator.users.names import check_user_name, folded
from replicator.users.schemes import PasswordHash, hash_password, parse_hash
from replicator.users.words.allowed_nets import NO_NETS, AllowedNets, allowed_nets
from replicator.users.words.allowed_nets import WORD as NETS
from replicator.users.words.extra_field import EXTRA_FIELD
from replicator.users.words.foreign_words import foreign_words
from replicator.users.words.home_cluster import NOWHERE, home_cluster
from replicator.users.words.mail_user import NOBODY, mail_user, with_mail_user
from replicator.users.words.nologin import is_disabled
from replicator.users.words.quota_limits import OwnLimits, own_limits

T = TypeVar("T")

LINE_MAX_BYTES = 4096
"""Octets of a line that is kept in the cluster's table."""

DIGEST_BYTES = 4
"""Octets of the digest of a file: few enough for people to compare, and nobody learns a hash from them."""

NO_HASH = "*"
"""Placeholder for a hash: the user logs in without a password, by a token or a certificate, or not at all."""


class PasswdFileError(Exception):
    """The file cannot be read or changed, or the request is invalid. The text names the file and what to do."""


class UserExistsError(PasswdFileError):
    """The user is in the file already."""


class UserUnknownError(PasswdFileError):
    """The user is not in the file."""


class Line(NamedTuple):
    """A line. `user` is its name, folded, and `name` that as written; None: the line makes no sense.

    `digest`: of its bytes. `mail_user`: whose mail it opens, if that is another user (`mail_user`).
    """

    user: str | None
    name: str
    password: PasswordHash | None
    limits: OwnLimits
    cluster: str | None
    disabled: bool
    problems: tuple[str, ...]
    digest: int
    hash_problem: str | None = None
    foreign: frozenset[str] = frozenset()
    nets: AllowedNets | None = None
    mail_user: str | None = None


def parse_line(text: bytes) -> Line:
    """Parse a line with its end, whatever is wrong with it."""
    problems: list[str] = []

    def understood(parse: Callable[[str], T], given: str) -> T | None:
        try:
            return parse(given)
        except ValueError as error:
            problems.append(str(error))
            return None

    bare = text.rstrip(b"\r\n")
    try:
        name, password, more = fields_of(text)
    except ValueError as error:
        return Line(None, "", None, {}, None, disabled=True, problems=(str(error),), digest=digest_of(bare))
    hashed = None if password == NO_HASH else understood(parse_hash, password)
    hash_problem = problems[0] if problems else None
    limits = understood(own_limits, more) or {}
    try:
        cluster = home_cluster(more)
    except ValueError as error:
        problems.append(str(error))
        cluster = NOWHERE
    disabled = understood(is_disabled, more) is not False  # what makes no sense lets nobody in
    try:
        nets = allowed_nets(more)
    except ValueError as error:
        problems.append(str(error))
        nets = NO_NETS
    try:
        owner = mail_user(more)
    except ValueError as error:
        problems.append(str(error))
        owner = NOBODY
    return Line(
        folded(name),
        name,
        hashed,
        limits,
        cluster,
        disabled=disabled,
        problems=tuple(problems),
        digest=digest_of(bare),
        hash_problem=hash_problem,
        foreign=foreign_words(more),
        nets=nets,
        mail_user=None if owner == folded(name) else owner,
    )


def digest_of(line: bytes) -> int:
    """Return the digest of a line without its end."""
    return int.from_bytes(blake2b(line, digest_size=DIGEST_BYTES).digest())


def user_of(line: bytes) -> str:
    """Return the user of a line without its end. Raises ValueError if the line is none, or anything in it is wrong."""
    if len(line) > LINE_MAX_BYTES or not is_entry(line) or b"\n" in line or b"\r" in line:
        raise ValueError(f"a user's line is `user:{{SCHEME}}hash`, with at most {LINE_MAX_BYTES} bytes and no line end")
    user, password, more = fields_of(line)
    if password != NO_HASH:
        parse_hash(password)
    own_limits(more)
    home_cluster(more)
    is_disabled(more)
    allowed_nets(more)
    mail_user(more)
    return user


def mail_user_in(line: bytes) -> str | None:
    """Return the user whose mail a line opens, if that is another one than its name says: `NOBODY` for no sense."""
    if b"user=" not in line:  # as in most lines
        return None
    try:
        name, _, more = fields_of(line)
    except ValueError:
        return None  # the line is no user's
    try:
        owner = mail_user(more)
    except ValueError:
        return NOBODY
    return None if owner == folded(name) else owner


def owner_of(line: bytes) -> str:
    """Return the user whose mail a line opens, which may be `NOBODY`. Raises ValueError if the line has no name."""
    owner = mail_user_in(line)
    return folded(name_in(line)) if owner is None else owner


def replaced(old: bytes, new: bytes) -> bytes:
    """Return the line `new` in place of `old`: it opens the same mail, unless it says whose mail it opens."""
    owner = mail_user_in(old)
    is_silent = mail_user(fields_of(new)[2]) is None
    return with_mail_user(new, owner) if owner is not None and owner != NOBODY and is_silent else new


def renamed(line: bytes, name: str) -> bytes:
    """Return a line, without its end, under another name, folded, which opens the same mail. Raises as `user_of`."""
    check_user_name(name)
    old, _, more = fields_of(line)
    owner = mail_user(more) or folded(old)
    _, _, fields = line.partition(b":")
    changed = with_mail_user(folded(name).encode() + b":" + fields, None if owner == folded(name) else owner)
    user_of(changed)
    return changed


@dataclass(frozen=True, slots=True)
class MailNames:
    """Whose mail a log-in name opens, or did: `mail_user`, or `NOBODY`. `other_names`: the others that open it."""

    mail_user: str
    other_names: tuple[str, ...] = ()


def refusal_of(user: str, holder: str, owner: str) -> str:
    """Return why nobody may get a name while the name `holder` opens the mail of `owner`: of this user, or `NOBODY`."""
    if owner == NOBODY:
        return (
            f"it is not known whose mail {holder!r} opens, and it may be that of {folded(user)!r}: correct the word"
            " `user=` in its line first"
        )
    return (
        f"{folded(user)!r} is the user whose mail {holder!r} opens: somebody else of this name would share that mail;"
        " choose another name"
    )


def name_in(line: bytes) -> str:
    """Return the name in a line without its end, whatever follows it. Raises ValueError if there is none."""
    if not is_entry(line) or b"\n" in line or b"\r" in line:
        raise ValueError("not a user's line")
    name = line.partition(b":")[0].decode()
    check_user_name(name)
    return name


def with_hash(line: bytes, hashed: str) -> bytes:
    """Return a line, without its end, with this hash in place of its own. Raises ValueError as `user_of`."""
    if ":" in hashed or not hashed.isprintable():
        raise ValueError("a hash must have no colon and no control character")
    changed = with_octets(line, hashed.encode())
    user_of(changed)
    return changed


def with_octets(line: bytes, hashed: bytes) -> bytes:
    """Return a line with these octets in place of its hash, whatever they are."""
    name, *fields = line.split(b":", 2)
    return b":".join([name, hashed, *fields[1:]])


def needs_secret(line: bytes) -> bool:
    """Return True if the line's user logs in by SCRAM, so that the file needs a secret."""
    return line.partition(b":")[2].upper().startswith(b"{%s}" % scram.SCHEME.encode())


def new_line(user: str, password: str, scheme: str, nets: AllowedNets | None = None) -> str:
    """Return a line without its end, with the name folded. Blocks. Raises PasswdFileError.

    `nets`: the only networks from which the user may log in.
    """
    try:
        check_user_name(user)
        fields = [folded(user), hash_password(password, scheme)]
        if nets is not None:
            fields += [""] * (EXTRA_FIELD - len(fields)) + [f"{NETS}={nets}"]
        return ":".join(fields)
    except ValueError as error:
        raise PasswdFileError(f"not changed: {error}") from error


def is_entry(line: bytes) -> bool:
    """Return True if the line is neither empty nor a comment."""
    return bool(line.strip()) and not line.startswith(b"#")


def fields_of(line: bytes) -> tuple[str, str, str]:
    """Return the name, the hash, and all fields after it."""
    try:
        user, _, rest = line.rstrip(b"\r\n").decode().partition(":")
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8; save the file as UTF-8 text") from error
    check_user_name(user)
    password, _, more = rest.partition(":")
    return user, password, more
