"""Seeds that failed in earlier runs, kept in a file with one seed per line: the next run tries them first."""

from __future__ import annotations

from pathlib import Path


class FailingSeeds:
    """The seeds of a file, which need not exist. A line that is not a number raises ValueError with its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seeds: list[int] = []  # in the order of their failures
        lines = path.read_text().splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            if not line.strip().isascii() or not line.strip().isdigit():
                raise ValueError(f"{path}, line {number}: {line!r} is no seed; put a number there, or remove the line")
            if int(line) not in self.seeds:
                self.seeds.append(int(line))

    def note(self, seed: int, *, has_failed: bool) -> None:
        """Keep a seed that fails, and remove one that passes from the file."""
        if has_failed == (seed in self.seeds):
            return
        if has_failed:
            self.seeds.append(seed)
        else:
            self.seeds.remove(seed)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_name(f"{self._path.name}.new")
        written.write_text("".join(f"{seed}\n" for seed in self.seeds))
        written.replace(self._path)
