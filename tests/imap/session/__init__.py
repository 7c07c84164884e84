"""The state of a session with a selected mailbox: sequence numbers, and the changes that it announces."""
