"""General utilities without knowledge of the field: processes, locks, owners, caches, a background event loop."""
