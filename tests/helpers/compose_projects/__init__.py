"""Small whole tasks, each with a Compose file of its own, for comparing Docker and the local sandbox."""

from tests.helpers.compose_projects.commands import COMMANDS, IMAGES
from tests.helpers.compose_projects.document import DOCUMENT
from tests.helpers.compose_projects.failing import FAILING
from tests.helpers.compose_projects.files import FILES
from tests.helpers.compose_projects.networks import NETWORKS
from tests.helpers.compose_projects.order import HEALTH, ORDER

PROJECTS = {
    "order": ORDER,
    "health": HEALTH,
    "commands": COMMANDS,
    "files": FILES,
    "networks": NETWORKS,
    "document": DOCUMENT,
    "images": IMAGES,
    "failing": FAILING,
}
"""What they are about → name → project."""
