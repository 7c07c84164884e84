"""`python -m replicator.workers`: the process of a door, started by the core process of a node."""

from replicator.workers.door.door import main

if __name__ == "__main__":
    main()
