"""Search texts of message bodies, in a database file of their own (design section 6).

    writer   the core writes the file, and alone begins it anew
    reader   the core and the doors read it
    form     what both know of it

All of it is derived data: the file may be deleted at any time, and is begun anew when it is missing, damaged, or of
another version. A row belongs to a hash, so the search texts of another node's bodies do no harm. Each row is checked
against its hash when it is read, so damage is found and never believed. An empty row says that a body has no search
text. To all below the door, search texts are octets; what makes them counts their versions.
"""
