"""The seeds that failed in earlier runs, in a file with a seed in each line: the next run tries them first."""

from __future__ import annotations

from pathlib import Path


class FailingSeeds:
    """Those of a file, which need not be there. A line that is no number raises ValueError with its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seeds: list[int] = []  # the ones that failed first come first
        lines = path.read_text().splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            if not line.strip().isascii() or not line.strip().isdigit():
                raise ValueError(f"{path}, line {number}: {line!r} is no seed; put a number there, or remove the line")
            if int(line) not in self.seeds:
                self.seeds.append(int(line))

    def note(self, seed: int, *, has_failed: bool) -> None:
        """A seed that fails is kept, and one that passes leaves the file."""
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
