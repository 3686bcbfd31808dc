"""A sandbox without a daemon: namespaces and an overlay for each, run by a supervisor process."""
