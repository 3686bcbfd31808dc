"""Root file systems for local sandboxes: base images, builds, layers."""
