"""Serve Harbor tasks as OpenEnv environments: one session per WebSocket, protected by a token.

    python recipes/openenv_server.py --task tasks --env docker --max-sessions 16
    HARBOR_GYM_OPENENV_TOKEN=… python recipes/openenv_server.py --task tasks/devops_task --env local --port 8000

Without a token in the environment one is generated, and printed once. See docs/openenv.md for clients.
"""

from harbor_gym.cli.recipes.openenv import serve_app
from harbor_gym.openenv import ServerConfig


class Config(ServerConfig):
    """The server; each field is a flag. Give a field here to change its default: ``max_sessions: int = 16``."""


app = serve_app(Config, program="openenv_server.py")

if __name__ == "__main__":
    app()
