"""Connections, whatever is spoken on them: `streams` listens and dials, `tls_stream` is TLS on a link.

`certificates` makes TLS contexts, which can be made anew while the node runs. `proxy_header` tells which client a proxy
names.
"""
