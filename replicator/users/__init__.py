"""Users with mail on this node: a passwd-file in Dovecot's format, `user:{SCHEME}hash[:other fields]`.

`names` maps addresses to users, `schemes` checks password hashes, `passwd_file` reads and edits the file, `throttle`
and `turns` slow guessing down, `directory` answers the doors. A user's name is always in lower case, however it was
written. Passwords are never logged and never kept, not even here.
"""

from replicator.users.directory import Login, UserDirectory
from replicator.users.names import UserNames, folded
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
    "Login",
    "PasswdFileError",
    "UserDirectory",
    "UserExistsError",
    "UserNames",
    "UserUnknownError",
    "add_user",
    "delete_user",
    "folded",
    "list_users",
    "set_password",
]
