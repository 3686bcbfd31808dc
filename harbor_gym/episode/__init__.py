"""One RL episode is one Harbor trial whose agent is the policy."""

from harbor_gym.episode.episode import AgentPhase, Episode, PhaseEnd

__all__ = ["AgentPhase", "Episode", "PhaseEnd"]
