"""The file systems that the attachment tests run on, real and in memory, and tests that they behave alike."""
