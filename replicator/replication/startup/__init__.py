"""Startup: decides when a freshly started node may serve clients, and which mailboxes (design section 7).

Used by the coordinator and the rebuild.
"""
