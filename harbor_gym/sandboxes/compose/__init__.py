"""Tasks with a ``docker-compose.yaml``, without a daemon: each service is a supervised sandbox of the same episode."""
