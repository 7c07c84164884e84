from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replicator.imap.services import ImapServices
from tests.imap.client import play

SCRIPTS = sorted(path for path in (Path(__file__).parent / "dialogues").glob("*.txt") if path.stem != "README")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
async def test_server_answers_as_the_script_says(script: Path, served: ImapServices) -> None:
    await play(await trio.Path(script).read_text("utf-8"), served)
