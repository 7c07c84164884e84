from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.imap.client import play, services
from tests.imap.memory_store import MemoryMailStore
from tests.one_node import one_node

SCRIPTS = sorted(path for path in (Path(__file__).parent / "dialogues").glob("*.txt") if path.stem != "README")

every_dialogue = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


@every_dialogue
async def test_with_a_store_in_memory(script: Path) -> None:
    await play(await trio.Path(script).read_text("utf-8"), services(MemoryMailStore()))


@every_dialogue
async def test_with_a_node(script: Path, tmp_path: Path) -> None:
    async with one_node(tmp_path) as mail:
        await play(await trio.Path(script).read_text("utf-8"), services(mail))
