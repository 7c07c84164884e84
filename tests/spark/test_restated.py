"""References between the rules and the functions that restate them on Spark."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESTATES = re.compile(r"Restates\s+`([\w.]+)`")
ON_SPARK = re.compile(r"`(spark\.comparison\.[\w.]+)`")


def documented(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted names of functions and methods, with their docstrings."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text("utf-8")).body:
            for function in [node, *node.body] if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(function, ast.FunctionDef):
                    inside = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                    yield f"{module}.{inside}{function.name}", ast.get_docstring(function) or ""


def test_rules_and_their_restatements_name_each_other() -> None:
    restating = {(rule, name) for name, text in documented("spark/comparison") for rule in RESTATES.findall(text)}
    restated = {
        (name, other)
        for folder in ("resync", "protocol")
        for name, text in documented(folder)
        for other in ON_SPARK.findall(text)
    }
    assert restating == restated
    assert len(restating) > 10
