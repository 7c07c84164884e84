"""The commands, one module each, loaded when the command is used (`command_list`)."""
