"""Last lines of sessions whose log-in no longer holds."""

PASSWORD_CHANGED = "* BYE Your password was changed, or your account was disabled or removed; log in again"
EXPIRED = "* BYE Your token or certificate has expired, or your account was disabled or removed; log in again"
