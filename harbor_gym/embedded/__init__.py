"""The embedded training backend: a policy of our own making and a Tinker-compatible server for it."""
