"""One module a command, loaded when the command is used (`command_list`)."""
