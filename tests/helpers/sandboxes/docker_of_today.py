"""What Docker of today makes of the Dockerfiles in ``dockerfile_forms.py`` and ``dockerfile_kinds.py``."""

import json
import os
from pathlib import Path
from typing import Any

_RECORDS = Path(__file__).with_suffix(".json")


def of_today(about: str) -> dict[str, Any]:
    """Return what Docker 28 makes of a Dockerfile: the settings, and what is other than in the base."""
    return json.loads(_RECORDS.read_text(encoding="utf-8"))[about]


def record(about: str, made: dict[str, Any]) -> None:
    """Compare what Docker has made with the record; with ``HARBOR_GYM_RECORD`` write it there instead."""
    records = json.loads(_RECORDS.read_text(encoding="utf-8"))
    if "HARBOR_GYM_RECORD" in os.environ:
        records[about] = made
        lines = [
            json.dumps({name: records[name]}, sort_keys=True, ensure_ascii=False)[1:-1] for name in sorted(records)
        ]
        _RECORDS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    assert records[about] == made
