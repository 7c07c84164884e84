"""Debian's Dovecot, which serves nobody, and answers on its sockets who its users are."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicator.config import DovecotAuthConfig
from tests.effort import IN_CI

DOVECOT = shutil.which("dovecot", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "dovecot"

needs_dovecot = pytest.mark.skipif(
    not Path(DOVECOT).exists() and not IN_CI, reason="Dovecot is not installed: apt-get install dovecot-core"
)

PEOPLE = """\
alice:{PLAIN}secret::::::userdb_quota_rule=*:storage=1G userdb_quota_rule2=Trash:storage=+10%%
bob:{PLAIN}hidden::::::nologin
carol:{PLAIN}quiet::::::userdb_quota_rule=*:storage=lots
dave:{PLAIN}p\u00e4\u00ad ss::::::
erin:{PLAIN}vast::::::userdb_quota_rule=*:ignore
frank:{PLAIN}large::::::userdb_quota_rule=*:storage=unlimited
jane:{PLAIN}odd::::::userdb_uid=nosuchuser
"""
"""`nosuchuser` is no user of the machine, and so the userdb fails for jane alone."""

FILE = "driver = passwd-file\n  args = {directory}/people"
DOWN = "driver = dict\n  args = {directory}/dict.conf"
"""Settings of a database: a file, and a server that is down."""

DICT = """\
uri = proxy:{directory}/none:none
key account {{
  key = %u
  format = json
}}
passdb_objects = account
userdb_objects = account
"""

CONFIGURATION = """\
base_dir = {directory}/run
state_dir = {directory}/state
log_path = {directory}/log
protocols =
ssl = no
default_login_user = {user}
default_internal_user = {user}
default_internal_group = {group}
auth_mechanisms = {mechanisms}
auth_username_format = %Ln
auth_failure_delay = {delay_s} secs
passdb {{
  {passdb}
}}
userdb {{
  {userdb}
  default_fields = uid=65534 gid=65534 home=/nonexistent
}}
service auth {{
  unix_listener auth-userdb {{
    mode = 0600
  }}
  unix_listener auth-client {{
    mode = 0600
  }}
}}
"""


class Dovecot:
    """A Dovecot in a directory. It can be stopped, and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        run = directory / "run"
        self.config = DovecotAuthConfig(run / "auth-userdb", run / "auth-client")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([DOVECOT, "-F", "-c", self._directory / "dovecot.conf"])
        while self._process.poll() is None:
            if _listens(self.config.userdb) and _listens(self.config.auth):
                return
        raise AssertionError((self._directory / "log").read_text())

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


@contextmanager
def dovecot(
    mechanisms: str = "plain", *, passdb: str = FILE, userdb: str = FILE, delay_s: int = 0
) -> Iterator[Dovecot]:
    """Run a Dovecot. Its sockets need a short path. `delay_s`: seconds that it takes to refuse a password."""
    directory = Path(tempfile.mkdtemp(prefix="dovecot-"))
    user = pwd.getpwuid(os.getuid()) if os.getuid() else pwd.getpwnam("nobody")
    people, config, dict_config = directory / "people", directory / "dovecot.conf", directory / "dict.conf"
    people.write_text(PEOPLE, encoding="utf-8")
    dict_config.write_text(DICT.format(directory=directory), encoding="utf-8")
    group = subprocess.run(["id", "-gn", user.pw_name], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    config.write_text(
        CONFIGURATION.format(
            directory=directory,
            user=user.pw_name,
            group=group,
            mechanisms=mechanisms,
            passdb=passdb.format(directory=directory),
            userdb=userdb.format(directory=directory),
            delay_s=delay_s,
        ),
        encoding="utf-8",
    )
    directory.chmod(0o755)  # the process that reads the files has another user than root
    people.chmod(0o644)
    dict_config.chmod(0o644)
    server = Dovecot(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)
