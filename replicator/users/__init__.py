"""Who has mail here: a passwd-file in Dovecot's format, `user:{SCHEME}hash[:other fields]`.

`schemes` knows password hashes, `passwd_file` reads and edits the file, `throttle` slows guessing down, `directory`
answers the doors. A user's name is taken exactly as it stands in the file, capitals included; the LMTP door alone
also tries other spellings of an address. Passwords are never logged and never kept, not even here.
"""

from replicator.users.directory import UserDirectory
from replicator.users.passwd_file import (
    PasswdFileError,
    UserExistsError,
    UserUnknownError,
    add_user,
    delete_user,
    list_users,
    set_password,
)

__all__ = [
    "PasswdFileError",
    "UserDirectory",
    "UserExistsError",
    "UserUnknownError",
    "add_user",
    "delete_user",
    "list_users",
    "set_password",
]
