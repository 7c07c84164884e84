"""The passwd-file: `line` has one line's meaning, `table` that of all, and `editing` changes single lines."""
