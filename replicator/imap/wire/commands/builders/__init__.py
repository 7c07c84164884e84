"""Commands built from parsed text: one module for each group of commands, over the values that they share.

A class has one method for each rule of `imap.lark`, called as the rule is reduced. It also checks what the grammar
cannot express: ranges of numbers, valid dates, depth of nesting, names. `command_builder` joins the classes.
"""
