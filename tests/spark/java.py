"""A mark for tests that need Java, which Spark runs on."""

from __future__ import annotations

import os
import shutil

import pytest

JAVA_INSTALLED = shutil.which("java") is not None or "JAVA_HOME" in os.environ
SKIP_REASON = "audits on Spark are left out: Java is not installed: apt-get install openjdk-17-jre-headless"
needs_java = pytest.mark.skipif(not JAVA_INSTALLED, reason=SKIP_REASON)
