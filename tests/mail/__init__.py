"""Tests of what doors share: the view of a mailbox, watches of folders, names of flags."""
