"""The owners of sandboxes, by the names that this room uses."""

from harbor_gym.owners import Owner, is_alive, owner_label, run_id, temporary_prefix

__all__ = ["Owner", "is_alive", "owner_label", "run_id", "temporary_prefix"]
