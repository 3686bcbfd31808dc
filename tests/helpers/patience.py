"""How long tests wait for what is bound to come."""

PATIENCE_SEC = 60.0
"""Nothing is measured by it: it only ends a test of what never comes, and a busy machine's processes may come late."""
