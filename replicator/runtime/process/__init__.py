"""This process: its event loop and memory, further processes of its program, and the service manager."""
