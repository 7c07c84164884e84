"""Users with mail on this node: a passwd-file in Dovecot's format, `user:{SCHEME}hash[:other fields]`.

`names` maps addresses to users, `schemes` checks password hashes, `scram` lets users log in without sending their
password, `decoys` answers for those who cannot log in, `bearer` reads messages with an access token, `passwd_file`
reads and edits the file, `words` understands what its lines say besides, `followed_file` reads it again when it has
changed, `logins` remembers passwords, `masters` may act as others, `aliases` are addresses of users, `accounts` shows
all of that to operators, `trial` why somebody cannot log in, `attempts` slows guessing down, `directory` answers the
doors, or `elsewhere` if a server elsewhere knows the users. A user's name is always in lower case, however it was
written. Passwords are never logged and never kept, not even here.
"""

from replicator.users.accounts import Account, find_account, list_accounts
from replicator.users.aliases.recipients import Recipients
from replicator.users.attempts.throttle import Penalty
from replicator.users.bearer import (
    BearerError,
    BearerMessage,
    TokenFault,
    oauthbearer_challenge,
    xoauth2_challenge,
)
from replicator.users.directory import UserDirectory
from replicator.users.elsewhere.directory import ExternalDirectory
from replicator.users.elsewhere.source import EntryError, Found, SourceError, UserSource, Verdict
from replicator.users.logins import Identity, Login
from replicator.users.names import UserNames, folded
from replicator.users.passwd_file.editing import (
    add_user,
    delete_user,
    list_users,
    rename_user,
    set_disabled,
    set_password,
    valid_lines,
)
from replicator.users.passwd_file.line import (
    MailNames,
    PasswdFileError,
    UserExistsError,
    UserUnknownError,
    new_line,
)
from replicator.users.schemes import DEFAULT_SCHEME, NEW_SCHEMES
from replicator.users.scram import (
    ChannelBindingError,
    ClientFirst,
    ScramAttempt,
    ScramError,
    ScramExchange,
    ScramKeys,
)
from replicator.users.trial import Obstacle, Reason, Trial
from replicator.users.words.allowed_nets import AllowedNets, parse_nets
from replicator.users.words.home_cluster import Site
from replicator.users.words.quota_limits import NO_LIMITS, QuotaLimits

Directory = UserDirectory | ExternalDirectory
"""The users of a node, as all its parts use them."""

__all__ = [
    "DEFAULT_SCHEME",
    "NEW_SCHEMES",
    "NO_LIMITS",
    "Account",
    "AllowedNets",
    "BearerError",
    "BearerMessage",
    "ChannelBindingError",
    "ClientFirst",
    "Directory",
    "EntryError",
    "ExternalDirectory",
    "Found",
    "Identity",
    "Login",
    "MailNames",
    "Obstacle",
    "PasswdFileError",
    "Penalty",
    "QuotaLimits",
    "Reason",
    "Recipients",
    "ScramAttempt",
    "ScramError",
    "ScramExchange",
    "ScramKeys",
    "Site",
    "SourceError",
    "TokenFault",
    "Trial",
    "UserDirectory",
    "UserExistsError",
    "UserNames",
    "UserSource",
    "UserUnknownError",
    "Verdict",
    "add_user",
    "delete_user",
    "find_account",
    "folded",
    "list_accounts",
    "list_users",
    "new_line",
    "oauthbearer_challenge",
    "parse_nets",
    "rename_user",
    "set_disabled",
    "set_password",
    "valid_lines",
    "xoauth2_challenge",
]
