from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicator.runtime.logs.lines import JOURNAL, LogFormat, LogSettings

PROGRAM = """
import logging, sys
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.logs.lines import LogFormat, LogSettings, log_to_stderr, settings_in_force
settings = LogSettings.of(sys.argv[1], LogFormat(sys.argv[2]))
log_to_stderr(settings, sys.argv[3] if len(sys.argv) > 3 else "")
assert settings_in_force() is settings
log = logging.getLogger("replicator.imap.handlers.auth")
log.debug("fine")
log.info("login ok %s", LogFields({"user": "a b", "tries": 2, "client": None}))
logging.getLogger("replicator.lmtp.server").warning("a line\\nand <3> more")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("replicator").exception("a defect")
"""


def logged(*arguments: str, to: Path | None = None, environment: dict[str, str] | None = None) -> list[str]:
    """Return the lines that a process logs, to a pipe or to a file."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    env = os.environ | (environment or {})
    if to is None:
        return subprocess.run(command, env=env, capture_output=True, check=True, text=True).stderr.splitlines()
    with to.open("w") as stream:
        subprocess.run(command, env=env, stderr=stream, check=True)
    return to.read_text().splitlines()


def test_lines_of_text_have_time_level_and_logger() -> None:
    lines = logged("info", "text", "door 1")
    assert [line.split(" ", 1)[1] for line in lines[:2]] == [
        'INFO replicator.imap.handlers.auth [door 1]: login ok user="a b" tries=2',
        "WARNING replicator.lmtp.server [door 1]: a line\\nand <3> more",
    ]
    assert len(lines) == 3
    assert "ZeroDivisionError" in lines[2]


def test_json_has_the_values_apart() -> None:
    login, warning, defect = map(json.loads, logged("info", "json", "door 1"))
    assert login.pop("time").endswith("Z")
    assert login == {
        "level": "info",
        "logger": "replicator.imap.handlers.auth",
        "message": 'login ok user="a b" tries=2',
        "process": "door 1",
        "fields": {"user": "a b", "tries": 2},
    }
    assert warning["message"] == "a line\nand <3> more"
    assert "ZeroDivisionError" in defect["error"]


def test_the_journal_gets_priorities() -> None:
    lines = logged("debug", "journal")
    assert lines[:3] == [
        "<7>replicator.imap.handlers.auth: fine",
        '<6>replicator.imap.handlers.auth: login ok user="a b" tries=2',
        "<4>replicator.lmtp.server: a line\\nand <3> more",
    ]
    assert lines[3].startswith("<3>replicator: a defect")


def test_the_journal_is_recognised_by_its_stream(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    found = file.stat()
    there = {JOURNAL: f"{found.st_dev}:{found.st_ino}"}
    assert logged("info", "auto", to=file, environment=there)[0].startswith("<6>")
    assert " INFO " in logged("info", "auto", environment=there)[0], "standard error was redirected since"
    assert " INFO " in logged("info", "text", to=file, environment=there)[0]


def test_modules_have_levels_of_their_own() -> None:
    lines = logged("error,imap=debug,replicator.lmtp=warning", "text")
    assert ["fine" in lines[0], "login ok" in lines[1], "a line" in lines[2], "a defect" in lines[3]] == [True] * 4
    assert len(logged("error,imap.handlers=error", "text")) == 1
    assert len(logged("error,replicator=warning", "text")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loud", "'loud' is no level: debug, info, warning, error"),
        ("", "'' is no level"),
        ("info,imap", "'imap' is not MODULE=LEVEL"),
        ("info,im ap=debug", "is not MODULE=LEVEL"),
        ("info,imap=loud", "'loud' is no level"),
        ("info,imab=debug", "no module 'imab'"),
        ("info,=debug", "is not MODULE=LEVEL"),
    ],
)
def test_impossible_levels_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LogSettings.of(text)


def test_settings_say_what_they_are_made_of() -> None:
    assert LogSettings.of("info,imap=debug", LogFormat.JSON) == LogSettings(
        "info", {"replicator.imap": "debug"}, LogFormat.JSON
    )
