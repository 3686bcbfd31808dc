"""The owners of sandboxes, by the names that this room uses."""

from harbor_gym.owners import Owner, is_alive, owned_temporary_dir, owner_label, run_id

__all__ = ["Owner", "is_alive", "owned_temporary_dir", "owner_label", "run_id"]
