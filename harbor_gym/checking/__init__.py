"""Check that a task can be solved, is unsolved at the start, and is graded soundly."""

from harbor_gym.checking.checks import check_task, check_tasks
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.verdict import PhaseSeconds, PristineCheck, TaskCheck, Verdict

__all__ = ["CheckPlan", "PhaseSeconds", "PristineCheck", "TaskCheck", "Verdict", "check_task", "check_tasks"]
