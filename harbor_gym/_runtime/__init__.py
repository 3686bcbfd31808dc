"""General utilities, independent of environments: processes, locks, owners, caches, a background event loop."""
