"""The sections of the configuration file, a module for each group of them.

For each section, a module has the data class with the defaults of missing keys; `read_NAME`, which takes the keys from
the file and notes what is wrong within the section; and `format_NAME`, which writes the section into a file. A new key
is added there, once in each of the three, and to the file that docs/configuration.md shows.
"""
