"""Images as SIF files: read, built from a task's layers, pulled, pushed, and kept in a folder that machines share."""
