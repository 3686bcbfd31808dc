"""What of a task's Compose files our Docker environment reads itself."""

from pathlib import Path

from harbor_gym.sandboxes.docker.engine import own_services

COMPOSE = """\
services:
  main: {command: !override [sleep, "9"], user: !reset null}
  db: !override {image: i}
volumes: {kept: !override {external: true}, gone: !reset null}
"""


def test_the_tags_of_compose_hide_no_definition(tmp_path: Path) -> None:
    (tmp_path / "docker-compose.yaml").write_text(COMPOSE)
    found = own_services([tmp_path / "docker-compose.yaml"])
    assert list(found["services"]) == ["main", "db"]
    assert found["volumes"] == {"kept": {"external": True}, "gone": {}}
