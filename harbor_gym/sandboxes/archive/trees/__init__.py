"""Trees of files as a stream of records: read by descriptors on one side, written by descriptors on the other.

Both ends of a transfer run this, one of them in a sandbox, where ``trees`` is a package by itself: stdlib only, with
relative imports. The entries of a tree may change at any moment: each name is opened in its directory's descriptor and
never through a link, and an entry that has changed its kind meanwhile is left out. Every record is sent whole, so that
an error can follow at any point, and both ends enforce the limits.
"""
