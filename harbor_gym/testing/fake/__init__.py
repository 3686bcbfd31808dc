"""A sandbox that exists in memory only, for tests of the code around a sandbox."""
