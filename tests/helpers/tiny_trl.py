"""Names of ``recipes.tiny_trl``, each imported when it is first used: torch and TRL take seconds to import."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recipes.tiny_trl.engine import CompletionsEngine as CompletionsEngine
    from recipes.tiny_trl.letters import ANSWER as ANSWER
    from recipes.tiny_trl.letters import INSTRUCTION as INSTRUCTION
    from recipes.tiny_trl.letters import LETTERS as LETTERS
    from recipes.tiny_trl.letters import RIGHT as RIGHT
    from recipes.tiny_trl.letters import SETTINGS as SETTINGS
    from recipes.tiny_trl.letters import make_letter_policy as make_letter_policy
    from recipes.tiny_trl.letters import write_letter_task as write_letter_task
    from recipes.tiny_trl.on_cpu import EngineWeights as EngineWeights
    from recipes.tiny_trl.on_cpu import async_grpo_on_cpu as async_grpo_on_cpu
    from recipes.tiny_trl.on_cpu import attend as attend
    from recipes.tiny_trl.runs import METRICS_NAME as METRICS_NAME
    from recipes.tiny_trl.runs import train_letters as train_letters
    from recipes.tiny_trl.runs import train_letters_async as train_letters_async
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "recipes.tiny_trl.engine": "CompletionsEngine",
            "recipes.tiny_trl.letters": (
                "ANSWER INSTRUCTION LETTERS RIGHT SETTINGS make_letter_policy write_letter_task"
            ),
            "recipes.tiny_trl.on_cpu": "EngineWeights async_grpo_on_cpu attend",
            "recipes.tiny_trl.runs": "METRICS_NAME train_letters train_letters_async",
        },
    )
