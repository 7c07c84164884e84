"""Tests of mail in a healthy cluster: delivery, reading, changes, large messages, TLS and logins."""
