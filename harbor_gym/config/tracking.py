"""Which experiment tracker a run is sent to."""

from importlib.util import find_spec
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from harbor_gym.errors import MissingDependencyError


class Tracking(BaseModel):
    """An experiment tracker beside the run's own folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tracker: Literal["trackio", "mlflow", "wandb"] | None = None
    """Send figures, settings and transcripts to this tracker too."""

    project: str | None = None
    """The tracker's project; MLflow calls it an experiment."""

    name: str | None = None
    """The run's name in the tracker."""

    @model_validator(mode="after")
    def _require_tracker(self) -> Self:
        if self.tracker is None and (self.project or self.name):
            raise ValueError("--track-project and --track-name need --track trackio, mlflow or wandb")
        return self

    def require(self) -> None:
        """Check that the tracker's library is installed.

        Raises:
            MissingDependencyError: It is not.
        """
        if self.tracker is None:
            return
        found = find_spec(self.tracker)
        if found is None or found.origin is None:  # W&B and others write to a folder of that name
            raise MissingDependencyError(f"--track {self.tracker} needs {self.tracker}: pip install {self.tracker}")
