# ruff: noqa: F403
"""The models that this repository names. With those of all others, pyright would read 2,000 more files."""

from .auto import *
from .qwen3 import *
