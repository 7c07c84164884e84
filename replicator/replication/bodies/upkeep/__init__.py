"""Upkeep of the bodies of this node: outlines and search texts made, expunged mail forgotten, orphans removed."""
