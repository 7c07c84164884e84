from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.imap.client import play, services

SCRIPTS = sorted(path for path in (Path(__file__).parent / "dialogues").glob("*.txt") if path.stem != "README")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
async def test_dialogue(script: Path) -> None:
    await play(await trio.Path(script).read_text("utf-8"), services())
