"""What any program needs and nothing of this field: processes, locks, owners, caches, a background event loop."""
