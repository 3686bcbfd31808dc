"""A sandbox without a daemon: namespaces and an overlay for each, held by a supervisor of ours."""
