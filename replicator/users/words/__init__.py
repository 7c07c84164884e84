"""Words in the fields after the hash of a passwd-file's line: quotas, the home cluster, who may log in, and others.

A word stands in any of the fields, separated from the rest by colons or spaces; Dovecot takes those of the eighth only.
"""
