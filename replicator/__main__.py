"""`python -m replicator` is the command `replicator`."""

from replicator.cli import main

if __name__ == "__main__":
    main()
