"""Check that a task trains what it says: it can be solved, is not solved already, and its verdict can be trusted."""

from harbor_gym.checking.checks import check_task, check_tasks
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.verdict import PhaseSeconds, PristineCheck, TaskCheck, Verdict

__all__ = ["CheckPlan", "PhaseSeconds", "PristineCheck", "TaskCheck", "Verdict", "check_task", "check_tasks"]
