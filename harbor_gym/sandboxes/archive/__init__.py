"""Trees of files between this machine and a sandbox, as bounded records and never as an archive."""
