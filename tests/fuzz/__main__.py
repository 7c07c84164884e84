"""`python -m tests.fuzz --minutes N`: fuzz each target for its share of the time, one after the other, and report.

The links of real nodes are a target, too (`links`), and so are syncs with Debian's Dovecot (`syncs`). Inputs that
reached something new are kept in `.fuzz/NAME/corpus`, from which the next run goes on; finds are in `.fuzz/NAME/finds`.
`python -m tests.fuzz --replay FILE` tries an input that was found again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tests.dsync.dovecot import DOVEADM
from tests.fuzz.target import Target
from tests.fuzz.targets import NAMES, load

ROOT = Path(".fuzz")
CAMPAIGNS = ("links", "syncs")  # the targets that are no parsers
SLOWEST_S = 20  # for one input: only work that grows without measure takes as long, on any machine
MEMORY_MIB = 1024  # of a process that fuzzes
_EXECUTIONS = re.compile(r"^stat::number_of_executed_units:\s*(\d+)|^#(\d+)\s", re.MULTILINE)


def fuzz(target: Target, seconds: int) -> bool:
    """Fuzz one target. Print a line about it, and what was found. Returns True if nothing was."""
    corpus, finds = ROOT / target.name / "corpus", ROOT / target.name / "finds"
    corpus.mkdir(parents=True, exist_ok=True)
    finds.mkdir(exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = ROOT / target.name / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words if len(word) <= 64), "ascii")  # its limit
    before = set(finds.iterdir())
    options = (
        f"-dict={words}",
        f"-max_total_time={seconds}",
        f"-artifact_prefix={finds}/",
        f"-timeout={SLOWEST_S}",
        f"-rss_limit_mb={MEMORY_MIB}",
        "-print_final_stats=1",
        str(corpus),
    )
    command = [sys.executable, "-m", "tests.fuzz.guided", target.name, *options]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    said = result.stdout + result.stderr
    executions = max((int(first or second) for first, second in _EXECUTIONS.findall(said)), default=0)
    found = sorted(set(finds.iterdir()) - before)
    print(f"{target.name:8}{executions:12,} executions   {len(found)} finds", flush=True)
    if found or result.returncode:
        print(said[-6000:])
        for file in found:
            print(f"offending input: {file}\nto try it again: python -m tests.fuzz --replay {file}", flush=True)
    return not found and not result.returncode


def fuzz_campaign(name: str, seconds: int) -> bool:
    """Play rounds with real servers. Returns True if nothing was found."""
    if name == "syncs" and not Path(DOVEADM).exists():
        print(f"{name:8}{0:12,} changes      Dovecot is not installed: apt-get install dovecot-core", flush=True)
        return True
    command = [sys.executable, "-m", f"tests.fuzz.{name}", "--seconds", str(seconds)]
    return subprocess.run([*command, "--finds", str(ROOT / name / "finds")], check=False).returncode == 0


def replay(file: Path) -> None:
    """Try one input of the target in whose directory it is. Raises what the target raises."""
    target = load(file.absolute().parents[1].name)
    target.warm_up()
    target.run_measured(file.read_bytes())
    print("nothing is wrong with this input")


def main() -> int:
    """Run the command. Returns its exit code."""
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    arguments.add_argument("--minutes", type=float, default=5, help="in all; default 5")
    arguments.add_argument("--only", choices=(*NAMES, *CAMPAIGNS), action="append", help="a target; default: all")
    arguments.add_argument("--replay", type=Path, metavar="FILE", help="an input that was found")
    given = arguments.parse_args()
    if given.replay:
        replay(given.replay)
        return 0
    names = given.only or (*NAMES, *CAMPAIGNS)
    seconds = max(1, round(given.minutes * 60 / len(names)))
    sound = [fuzz_campaign(name, seconds) if name in CAMPAIGNS else fuzz(load(name), seconds) for name in names]
    return 0 if all(sound) else 1


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{octet:02x}" for octet in word)


if __name__ == "__main__":
    sys.exit(main())
