"""Trees of files as a stream of records: read by descriptors on one side, written by descriptors on the other.

Both ends of a transfer run this, one of them in a sandbox, where ``trees`` is a package by itself: stdlib only, and
imports among its modules are relative. What stands in a tree may change at any moment: each name is opened in its
directory's descriptor and never through a link, and what has become something else meanwhile is left out. Every record
is sent whole, so that an error can follow at any point, and both ends count.
"""
