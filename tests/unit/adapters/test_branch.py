"""Groups of families: where copies begin, and the advantage of each token."""

import pickle
from typing import Any

import pytest

from harbor_gym import UsageError
from harbor_gym.adapters.tinker.branch import Branch, family_advantages

LOGPROBS = [[-0.1, -0.1], [-0.2, -0.2, -3.0], [-0.5], [-0.9, -0.9, -0.1, -0.1]]
"""Four messages; the second is the least likely a token, at 1.13 nats."""


@pytest.mark.parametrize(
    ("text", "turns", "shared"),
    [
        ("4@mid", 4, 2),
        ("4@mid", 3, 1),
        ("4@mid", 1, 0),
        ("4@entropy", 4, 1),
        ("4@entropy", 1, 0),
        ("2@3", 4, 3),
        ("2@9", 4, 3),
        ("2@0", 4, 0),
    ],
)
def test_copies_begin_before_the_last_message_at_the_latest(text: str, turns: int, shared: int) -> None:
    assert Branch.parse(text).turn(LOGPROBS[:turns]) == shared


@pytest.mark.parametrize("text", ["2@mid", "2@entropy", "2@0", "2@1", "2@3", "2@9"])
def test_a_turn_at_which_copies_begin_was_kept_all_along(text: str) -> None:
    branch = Branch.parse(text)
    for messages in range(2, 8):
        logprobs = [[-1.0 if turn == 1 else -0.1] for turn in range(messages)]
        shared = branch.turn(logprobs)
        assert all(branch.may_begin(shared, taken=taken) for taken in range(max(shared, 1), messages)), (
            messages,
            shared,
        )


@pytest.mark.parametrize(
    ("text", "kept"),
    [("2@mid", [1, 2, 2, 3, 3]), ("2@entropy", [1, 2, 3, 4, 5]), ("2@2", [1, 1, 1, 1, 1]), ("2@0", [0, 0, 0, 0, 0])],
)
def test_no_more_turns_are_kept_than_copies_may_begin_at(text: str, kept: list[int]) -> None:
    branch = Branch.parse(text)
    assert [sum(branch.may_begin(turn, taken=taken) for turn in range(1, taken + 1)) for taken in range(1, 6)] == kept


def test_a_message_without_tokens_is_not_the_least_likely_one() -> None:
    assert Branch.parse("2@entropy").turn([[], [-0.1], []]) == 1


@pytest.mark.parametrize("text", ["", "4", "4@", "1@mid", "4@end", "x4@mid", "4@-1", "4@mid "])
def test_what_is_no_branch_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SIZE@mid"):
        Branch.parse(text)


def test_a_group_consists_of_whole_families() -> None:
    Branch.parse("4@mid").require_fit(8)
    with pytest.raises(UsageError, match=r"group of 6 .* families of 4"):
        Branch.parse("4@mid").require_fit(6)


@pytest.mark.parametrize(
    ("rewards", "families", "expected"),
    [
        ([1, 0, 0, 0], [0, 1, 2, 3], [(0.75, 0.75), (-0.25, -0.25), (-0.25, -0.25), (-0.25, -0.25)]),
        ([1, 0, 0, 0], [0, 0, 2, 2], [(0.25, 0.5), (0.25, -0.5), (-0.25, 0.0), (-0.25, 0.0)]),
        ([1, 1, 0, 0], [0, 0, 2, 2], [(0.5, 0.0), (0.5, 0.0), (-0.5, 0.0), (-0.5, 0.0)]),
        ([1, 0, 1, 0], [0, 0, 2, 2], [(0.0, 0.5), (0.0, -0.5), (0.0, 0.5), (0.0, -0.5)]),
        ([1, 0, 1], [0, 0, 2], [(-0.25, 0.5), (-0.25, -0.5), (0.25, 0.25)]),
        ([1, 0], [0, 0], [(0.0, 0.5), (0.0, -0.5)]),
        ([1], [0], [(0.0, 0.0)]),
        ([], [], []),
    ],
    ids=[
        "no copies",
        "one family mixed",
        "between families",
        "within families",
        "a lone one",
        "one family",
        "one",
        "0",
    ],
)
def test_own_tokens_are_measured_in_the_family_and_shared_ones_between_families(
    rewards: list[float], families: list[int], expected: list[tuple[float, float]]
) -> None:
    assert family_advantages(rewards, families) == expected


def trajectory(
    shown: int, *answers: int, prompt: tuple[int, ...] = (1, 2), reward: float = 0.0, early: float = 0.0
) -> Any:
    """Return an episode that answers with single tokens, after each of which it is shown the same one.

    The last answer is paid ``reward``, the others ``early``.
    """
    import tinker
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl.types import Trajectory, Transition

    transitions: list[Any] = []
    for number, answer in enumerate(answers, start=1):
        is_last = number == len(answers)
        sampled = TokensWithLogprobs(tokens=[answer], maybe_logprobs=[-float(answer)])
        ob = tinker.ModelInput.from_ints(list(prompt))
        transitions.append(Transition(ob=ob, ac=sampled, reward=reward if is_last else early, episode_done=is_last))
        prompt = (*prompt, answer, shown)
    return Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())


def assembled(trajectories: list[Any], finals: list[float]) -> list[Any]:
    from tinker_cookbook.rl import train
    from tinker_cookbook.rl.types import TrajectoryGroup

    from harbor_gym.adapters.tinker.branching import advantages_by_family

    loop: Any = train
    before = loop.assemble_training_data
    with advantages_by_family():
        groups = [TrajectoryGroup(trajectories, finals, [{} for _ in trajectories])]
        data, _ = loop.assemble_training_data(groups, loop.compute_advantages(groups))
    assert loop.assemble_training_data is before
    return data


def column(datum: Any, name: str) -> list[float]:
    return datum.loss_fn_inputs[name].to_torch().tolist()


@pytest.mark.tinker
def test_the_shared_turns_are_trained_once_and_each_token_has_its_advantage() -> None:
    from harbor_gym.adapters.tinker.branching import FamilyTrajectory

    first = FamilyTrajectory.of(trajectory(9, 3, 4, 5, 6, reward=1.0), family=0, shared=2)
    copy = FamilyTrajectory.of(trajectory(9, 7, 8, prompt=(1, 2, 3, 9, 4, 9)), family=0)
    lone = FamilyTrajectory.of(trajectory(9, 3, 4), family=2)
    data = assembled([first, copy, lone], [0.0, 0.0, 0.0])
    assert [column(datum, "target_tokens") for datum in data] == [
        [2, 3, 9, 4, 9, 5, 9, 6],
        [2, 3, 9, 4, 9, 7, 9, 8],
        [2, 3, 9, 4],
    ]
    # The families' means are 1/2 and 0, so their baseline is 1/4.
    assert [column(datum, "advantages") for datum in data] == [
        [0.0, 0.25, 0.0, 0.25, 0.0, 0.5, 0.0, 0.5],
        [0.0, 0.0, 0.0, 0.0, 0.0, -0.5, 0.0, -0.5],
        [0.0, -0.25, 0.0, -0.25],
    ]
    assert [column(datum, "mask") for datum in data] == [
        [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0],
        [0.0, 1.0, 0.0, 1.0],
    ]


@pytest.mark.tinker
def test_what_the_shared_turns_paid_counts_in_each_copy() -> None:
    from harbor_gym.adapters.tinker.branching import FamilyTrajectory, branch_metrics

    first = FamilyTrajectory.of(trajectory(9, 3, 4, reward=0.5, early=0.5), family=0, shared=1)
    copy = FamilyTrajectory.of(trajectory(9, 7, prompt=(1, 2, 3, 9)), family=0, paid=0.5)
    data = assembled([first, copy], [0.0, copy.paid])
    assert [column(datum, "advantages") for datum in data] == [[0.0, 0.0, 0.0, 0.25], [0.0, 0.0, 0.0, -0.25]]
    assert branch_metrics([first, copy]) == {"branch/copies": 1, "branch/turn": 1, "branch/reward_variance": 0.0625}
    assert branch_metrics([first]) == {"branch/copies": 0}


@pytest.mark.tinker
def test_without_families_the_data_are_the_cookbooks_byte_for_byte() -> None:
    from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
    from tinker_cookbook.rl.types import TrajectoryGroup

    from harbor_gym.adapters.tinker.branching import branch_metrics

    plain = [trajectory(9, 3, 4, reward=1.0), trajectory(9, 5, reward=0.3)]
    groups = [TrajectoryGroup(plain, [0.0, 0.0], [{}, {}])]
    expected, _ = assemble_training_data(groups, compute_advantages(groups))
    assert [pickle.dumps(datum) for datum in assembled(plain, [0.0, 0.0])] == [pickle.dumps(x) for x in expected]
    assert branch_metrics(plain) == {}


@pytest.mark.tinker
def test_a_group_whose_copies_were_all_lost_is_the_plain_group() -> None:
    from harbor_gym.adapters.tinker.branching import FamilyTrajectory

    plain = [trajectory(9, 3, 4, reward=1.0), trajectory(9, 5)]
    families = [FamilyTrajectory.of(each, family=place, shared=1 - place) for place, each in enumerate(plain)]
    expected = [pickle.dumps(datum) for datum in assembled(plain, [0.0, 0.0])]
    assert [pickle.dumps(datum) for datum in assembled(families, [0.0, 0.0])] == expected
