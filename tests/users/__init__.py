"""Tests of users: names, the passwd file, password schemes, logins, and limits on guessing."""
