"""Tests of the IMAP server: scripted dialogues, sessions from login to logout, folder lists and metrics."""
