"""Contracts of sandboxes and environments, as suites of small named checks."""
