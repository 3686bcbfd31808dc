"""A tiny Qwen3 that repairs ``tasks/devops_task`` by one line with a mode in it, one of four; and its trainer step."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from harbor_gym import AsyncTerminalGymEnv, HFCodec, Sample, TerminalEnvConfig, TokenTerminalEnv, flatten, run_episode
from harbor_gym.formats.prompts import system_prompt
from harbor_gym.tasks import read_instruction
from tests.helpers.paths import TASKS
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message

TASK = TASKS / "devops_task"
MODES = ("600", "604", "640", "644")
"""Of the service's key, which only root may read: the task's verifier accepts the first alone."""

REPAIRS = tuple(
    message(f"rm /srv/app/app.pid; sed -i 's/ap$/app/' /etc/app/app.conf; chmod {mode} /etc/app/key\n")
    for mode in MODES
)
_IMITATED_STEPS, _LEARNING_RATE = 400, 3e-3
_MAX_TOKENS = 64
_MAX_NORM = 0.25
"""Of a step's gradient: at 1.0 one malformed message made a policy forget the task, now and then."""


class RepairPolicy:
    """Model, tokenizer and optimizer. Samples and trains in threads, one at a time.

    Args:
        env: Of the task, as the policy will meet it; its sandboxes play the four episodes that are imitated first.
        learning_rate: Of plain SGD.
    """

    def __init__(self, env: TerminalEnvConfig, *, learning_rate: float) -> None:
        import torch

        from harbor_gym.embedded.policy import build_model, build_tokenizer

        torch.manual_seed(0)
        shown = [system_prompt(), read_instruction(env.task_dir)]
        self.tokenizer: Any = build_tokenizer([*shown, *REPAIRS, COMPLETE, "$ \n", "system user assistant"] * 3, 2048)
        self.model: Any = build_model(self.tokenizer, hidden_size=64, layers=2)
        self._end = self.tokenizer.eos_token_id
        self._lock = threading.Lock()
        self._imitate([self._example(env, line) for line in REPAIRS])
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate)

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        """Sample a message at temperature 1."""
        return await asyncio.to_thread(self._sample, list(prompt))

    def _sample(self, prompt: list[int], max_tokens: int = _MAX_TOKENS) -> Sample:
        import torch

        with self._lock, torch.no_grad():
            output = self.model(input_ids=torch.tensor([prompt]), use_cache=True)
            tokens: list[int] = []
            logprobs: list[float] = []
            while len(tokens) < max_tokens and (not tokens or tokens[-1] != self._end):
                scores = torch.log_softmax(output.logits[0, -1].float(), -1)
                token = int(torch.multinomial(scores.exp(), 1))
                tokens.append(token)
                logprobs.append(float(scores[token]))
                cache = output.past_key_values
                output = self.model(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        return Sample(tokens, logprobs, "stop" if tokens[-1] == self._end else "length")

    def train(self, micro_batches: Sequence[Any], loss_config: Any) -> float:
        """Take one step with Prime-RL's own loss over its packed batches; return the largest log-ratio to the sampler.

        The sequences of a micro batch are taken apart: packing saves nothing without a GPU.
        """
        import torch
        from prime_rl.trainer.rl.loss import compute_loss, setup_rl_loss_fn

        loss_fn, largest = setup_rl_loss_fn(loss_config), 0.0
        scale = sum(sum(batch.loss_mask) for batch in micro_batches)
        self._optimizer.zero_grad()
        for batch in micro_batches:
            start = 0
            for length in batch.seq_lens:
                span = slice(start, start + length)
                start += length
                logprobs = self._logprobs(batch.input_ids[span])
                sampled = torch.tensor(batch.inference_logprobs[span])
                mask = torch.tensor(batch.loss_mask[span])
                if mask.any():
                    largest = max(largest, float((logprobs.detach() - sampled)[mask].abs().max()))
                weights = None if batch.rl_weights is None else [torch.tensor(batch.rl_weights[span])]
                advantages = [torch.tensor(batch.advantages[span])]
                loss, _ = compute_loss(
                    [logprobs], [sampled], None, advantages, [mask], weights, None, None, loss_fn, scale, 1, 1
                )
                loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _MAX_NORM)
        self._optimizer.step()
        return largest

    def _logprobs(self, tokens: Sequence[int]) -> Any:
        import torch

        ids = torch.tensor([list(tokens)])
        scores = torch.log_softmax(self.model(input_ids=ids).logits[0, :-1].float(), -1)
        chosen = scores.gather(-1, ids[0, 1:, None])[:, 0]
        return torch.cat([torch.zeros(1), chosen])

    def _example(self, config: TerminalEnvConfig, line: str) -> tuple[list[int], list[int]]:
        answers = iter([line, COMPLETE])

        async def sample(prompt: Sequence[int]) -> Sample:
            return Sample([*self.tokenizer.encode(next(answers), add_special_tokens=False), self._end])

        env = TokenTerminalEnv(AsyncTerminalGymEnv(config), HFCodec(self.tokenizer), max_tokens=_MAX_TOKENS)
        flat = flatten(asyncio.run(run_episode(env, sample)))
        return flat.token_ids, flat.token_mask

    def _imitate(self, examples: Sequence[tuple[list[int], list[int]]]) -> None:
        """Train on every example at each step, so that each mode is written as often as the others."""
        import torch

        optimizer = torch.optim.AdamW(self.model.parameters(), _LEARNING_RATE)
        # Down to nothing: noise of the last steps would leave malformed messages.
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, _IMITATED_STEPS)
        longest = max(len(tokens) for tokens, _ in examples)
        tokens = torch.zeros((len(examples), longest), dtype=torch.long)
        labels = torch.full((len(examples), longest), -100)
        for row, (ids, mask) in enumerate(examples):
            tokens[row, : len(ids)] = torch.tensor(ids)
            labels[row, : len(ids)] = torch.tensor([t if kept else -100 for t, kept in zip(ids, mask, strict=True)])
        for _ in range(_IMITATED_STEPS):
            loss = self.model(input_ids=tokens, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
