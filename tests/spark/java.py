"""Whether Spark can run here."""

from __future__ import annotations

import os
import shutil

import pytest

IS_THERE = shutil.which("java") is not None or "JAVA_HOME" in os.environ
WHY_NOT = "audits on Spark are left out: Java is not installed: apt-get install openjdk-17-jre-headless"
needs_java = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)
