"""The training cost of an episode: every token once, with any number of turns."""

from pathlib import Path

import pytest

from harbor_gym import TerminalEnvConfig
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.policies.token_policies import RENDERER, message, scripted
from tests.helpers.tasks import write_task

pytestmark = pytest.mark.tinker

TURNS = 20


async def test_twenty_turns_are_trained_on_as_prompt_answers_and_new_observations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tinker_cookbook.rl.data_processing import trajectory_to_data
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder

    byte_level_tokenizer().save_pretrained(tmp_path / "tokenizer")
    answers = [message(f"echo turn {turn}\n") for turn in range(TURNS)]
    builder = HarborSingleTaskEnvGroupBuilder(
        GroupTemplate(
            env=TerminalEnvConfig(
                task_dir=write_task(tmp_path / "task"), sandbox="harbor_gym.testing:FakeEnvironment", max_turns=TURNS
            ),
            group_size=1,
            model_name=str(tmp_path / "tokenizer"),
            renderer_name=RENDERER,
            max_tokens=500,
        )
    )
    group = await do_group_rollout(builder, scripted(*answers))
    (trajectory,) = group.trajectories_G
    assert len(trajectory.transitions) == TURNS

    # Counted from the texts alone: a user's message, its frame and the opening of an answer.
    encode = byte_level_tokenizer().encode
    shown = [str(transition.logs["shown"]) for transition in trajectory.transitions]
    frame = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompt = trajectory.transitions[0].ob.length
    sampled = sum(len(encode(f"{answer}<|im_end|>", add_special_tokens=False)) for answer in answers)
    observed = sum(len(encode(frame.format(text), add_special_tokens=False)) for text in shown[1:])

    (datum,) = trajectory_to_data(trajectory, 1.0)
    trained = datum.model_input.length + 1  # the last token is a target only
    assert trained == prompt + sampled + observed
    assert sum(datum.loss_fn_inputs["mask"].data) == sampled, "what is learnt is what was sampled"
    each_turn_alone = sum(transition.ob.length + len(transition.ac.tokens) for transition in trajectory.transitions)
    with capsys.disabled():
        print(  # noqa: T201  # a person runs this for the figure
            f"\n{TURNS} turns: trained on {trained} tokens = prompt {prompt} + sampled {sampled} + observed {observed};"
            f" a datum for each turn would be {each_turn_alone}, {each_turn_alone / trained:.1f} times as many"
        )
