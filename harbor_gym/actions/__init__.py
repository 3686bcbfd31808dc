"""The actions room: what a policy writes, read into commands for the terminal."""

from harbor_gym.actions.parse import ParsedAction, parse_action, parse_terminus_json

__all__ = ["ParsedAction", "parse_action", "parse_terminus_json"]
