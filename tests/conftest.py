"""For all tests: what hypothesis tries is right or wrong, however busy the machine is."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
