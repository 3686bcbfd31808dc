"""Commands about tasks and sandboxes."""
