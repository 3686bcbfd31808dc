"""A sandbox that exists in memory only, for tests of what is around a sandbox."""
