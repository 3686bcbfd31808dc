"""An in-memory sandbox, for tests of the code around a sandbox."""
