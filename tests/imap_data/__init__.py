"""Tests of the data that IMAP answers are made of: structure, envelope, sections and search of messages."""
