"""One target under atheris, which keeps inputs that reach new code and changes those further: `guided NAME OPTION…`.

The options are those of libFuzzer. It ends at the first find, which it writes to a file, with another exit code than 0.
"""

from __future__ import annotations

import sys

import atheris

from tests.fuzz.target import LONGEST_INPUT
from tests.fuzz.targets import load

INSTRUMENTED = ["protocol", "replicator", "h11", "lark", "tomllib"]
"""Packages whose branches guide the search."""


def main(name: str, options: list[str]) -> None:
    """Fuzz one target until the options say that the time is over."""
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = load(name)
    target.warm_up()
    atheris.Setup([sys.argv[0], f"-max_len={LONGEST_INPUT}", *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
