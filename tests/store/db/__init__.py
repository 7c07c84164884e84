"""Tests of the database: its schema, the writer, mailbox views, and damage."""
