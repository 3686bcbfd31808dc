"""Audit a whole data set: read each task's files, check it in sandboxes, and compare it with the others."""
