"""The order of messages for SORT and THREAD (RFC 5256), from the view and from their headers. Pure functions.

`header_facts` is all that is known of a header here, so whoever keeps these facts elsewhere replaces that module. Used
by the handlers of SORT and THREAD.
"""
