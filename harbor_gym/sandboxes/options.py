"""The options of this package's sandbox classes: each class has one record of its own, checked."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from harbor_gym._runtime.errors import UsageError


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


Text = Annotated[str, AfterValidator(_text)]
"""Text that is not empty."""


class SandboxOptions(BaseModel):
    """The options of every sandbox class of this package."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    setup_command: Text | None = None
    """Shell text that root runs before files are copied into the sandbox. Its work is kept for all sandboxes of the
    image, except by ``apptainer``, which runs it at each start."""

    build_dockerfile: bool = False
    """Build the task's Dockerfile, if it has one, even if the task names a ``docker_image``."""

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> Self:
        """Take the options out of a constructor's keyword arguments; what is left there is Harbor's.

        Raises:
            UsageError: An option has no such value; the message names it.
        """
        given = {name: arguments.pop(name) for name in cls.model_fields if name in arguments}
        try:
            return cls(**given)
        except ValidationError as exc:
            error = exc.errors()[0]
            where = f"sandbox option {error['loc'][0]}: " if error["loc"] else ""
            problem = error.get("ctx", {}).get("error") or f"{error['msg']}, got {error['input']!r}"
            raise UsageError(f"{where}{problem}") from exc
