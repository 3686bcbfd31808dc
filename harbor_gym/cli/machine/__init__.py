"""Commands about this machine."""
