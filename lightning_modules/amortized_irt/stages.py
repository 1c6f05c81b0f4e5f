"""Steps of the three stages of a question generator: supervised, and PPO and DPO on its own samples."""

from typing import Any

import torch
from torch import Tensor

from seedbed.batches import derive_seed
from seedbed.datasets.difficulty_prompts import PromptBatch
from seedbed.lightning_modules.amortized_irt.objectives import (
    dpo_losses,
    gae_advantages,
    ppo_losses,
    rloo_advantages,
)
from seedbed.lightning_modules.amortized_irt.writer import TRAIN, Samples, Writer


class Stages(Writer):
    """Training steps of :class:`~seedbed.lightning_modules.QuestionGeneratorModule`."""

    num_samples: int
    draws: int
    advantage: str
    kl_coef: float
    clip: float
    ppo_epochs: int
    mini_batch_size: int | None
    discount: float
    gae_lambda: float
    value_coef: float
    dpo_beta: float
    lr_scheduler: Any

    def _mean_share(self, total: Tensor, count: Tensor) -> Tensor:
        """Return this process's share of a mean over all: gradients are averaged afterwards."""
        if self._trainer is None or self.trainer.world_size == 1:
            return total / count.clamp_min(1)
        everywhere = self.all_gather(count.float())
        assert isinstance(everywhere, Tensor)
        return total * self.trainer.world_size / everywhere.sum().clamp_min(1)

    def _sft_step(self, batch: PromptBatch) -> Tensor:
        """Mean cross-entropy of the tokens of the questions."""
        losses = -self._answer_log_probs(batch)
        return self._mean_share(losses.sum(), batch.answer_mask.sum())

    def _answer_log_probs(self, batch: PromptBatch) -> Tensor:
        if not batch.answer.shape[1]:
            raise ValueError("stage='sft' needs questions, the batch has prompts only")
        return self.policy.evaluate(batch.prompt, batch.prompt_mask, batch.answer, batch.answer_mask)[0]

    def _draw_batch(self, batch: PromptBatch) -> tuple[Samples, Tensor]:
        """Samples for a training batch, and |zhat - z*| of each, (n, k)."""
        seed = derive_seed(self.random_state, TRAIN, self.draws, self.global_rank)
        samples = self._sample(batch.prompt, batch.prompt_mask, self.num_samples, seed)
        predicted = self.predict_difficulty(samples.texts).reshape(-1, self.num_samples)
        return samples, (predicted - batch.difficulty.unsqueeze(1)).abs()

    def _ppo_step(self, batch: PromptBatch) -> Tensor:
        """Several passes over fresh samples, each sample's step clipped."""
        samples, error = self._draw_batch(batch)
        parts = self._parts(len(samples.tokens))
        old, values, reference = self._before(samples, parts)
        divergence = (old - reference).sum(dim=1)
        advantages, returns = self._advantages(samples, error, old - reference, values)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        losses, clipped = [], []
        for _ in range(self.ppo_epochs):
            for part in parts:
                loss, ratio = self._ppo_loss(
                    samples.rows(part),
                    old[part],
                    advantages[part],
                    None if returns is None else returns[part],
                )
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.configure_gradient_clipping(optimizer.optimizer)
                optimizer.step()
                # The weights have changed; a cast of the old ones must not be used again.
                torch.clear_autocast_cache()
                losses.append(loss.detach())
                outside = ((ratio - 1).abs() > self.clip) & (samples.mask[part] > 0)
                clipped.append(outside.sum() / samples.mask[part].sum())
        self._log_samples(samples, error, divergence, clip_fraction=torch.stack(clipped).mean())
        if isinstance(self.lr_scheduler, str):
            self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]
        return torch.stack(losses).mean()

    def _parts(self, rows: int) -> list[Tensor]:
        """Mini-batches of samples: the same in every pass, so that the first ratio is exactly one."""
        seed = derive_seed(self.random_state, TRAIN, self.draws, self.global_rank, 0)
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).to(self.device)
        return list(torch.split(order, self.mini_batch_size or rows))

    @torch.no_grad()
    def _before(self, samples: Samples, parts: list[Tensor]) -> tuple[Tensor, Tensor | None, Tensor]:
        """Log-probabilities under the policy that drew the samples, its values, the reference's."""
        old, reference = (torch.zeros_like(samples.mask, dtype=torch.float32) for _ in range(2))
        values = None if self.policy.value_head is None else torch.zeros_like(old)
        for part in parts:
            rows = samples.rows(part)
            old[part], value = self.policy.evaluate(*rows.tensors(), values=values is not None)
            reference[part] = self.policy.evaluate_reference(*rows.tensors())
            if values is not None and value is not None:
                values[part] = value
        torch.clear_autocast_cache()
        return old, values, reference

    def _advantages(
        self, samples: Samples, error: Tensor, log_ratio: Tensor, values: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Advantage of each token under the reward -|zhat - z*| - beta log(pi / pi_ref), and returns."""
        if values is None:
            rewards = -error - self.kl_coef * log_ratio.sum(dim=1).reshape(error.shape)
            return rloo_advantages(rewards).reshape(-1, 1) * samples.mask, None
        rewards = -self.kl_coef * log_ratio
        last = samples.mask.sum(dim=1) - 1
        rewards[torch.arange(len(rewards), device=rewards.device), last] -= error.flatten()
        return gae_advantages(
            rewards, values, samples.mask, discount=self.discount, gae_lambda=self.gae_lambda
        )

    def _ppo_loss(
        self, samples: Samples, old: Tensor, advantages: Tensor, returns: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Loss of a mini-batch and the ratio at each token."""
        log_probs, values = self.policy.evaluate(*samples.tensors(), values=returns is not None)
        losses, ratio = ppo_losses(log_probs, old, advantages, clip=self.clip)
        if values is not None and returns is not None:
            losses = losses + self.value_coef * (values - returns).square()
        return self._mean_share((losses * samples.mask).sum(), samples.mask.sum()), ratio.detach()

    def _dpo_step(self, batch: PromptBatch) -> Tensor:
        """Prefer the sample whose difficulty came closest to the one that came least close."""
        samples, error = self._draw_batch(batch)
        first = torch.arange(len(error), device=error.device) * self.num_samples
        chosen, rejected = first + error.argmin(dim=1), first + error.argmax(dim=1)
        differ = (error.amax(dim=1) > error.amin(dim=1)).float()
        pairs = samples.rows(torch.cat([chosen, rejected]))
        reference = self.policy.evaluate_reference(*pairs.tensors()).sum(dim=1)
        torch.clear_autocast_cache()
        policy = self.policy.evaluate(*pairs.tensors())[0].sum(dim=1)
        losses = dpo_losses(*policy.chunk(2), *reference.chunk(2), beta=self.dpo_beta)
        # Of the pairs alone, half of them chosen to be likely: rather for a trend than for its size.
        self._log_samples(samples, error, (policy - reference).detach())
        return self._mean_share((losses * differ).sum(), differ.sum())

    def _log_samples(
        self, samples: Samples, error: Tensor, divergence: Tensor, clip_fraction: Tensor | None = None
    ) -> None:
        """Log how close the samples came, and what shows a generator that games the predictor."""
        found = {
            "train_difficulty_error": error.mean(),
            "train_kl": divergence.mean(),
            "train_length": samples.mask.sum(dim=1).float().mean(),
            "train_distinct": error.new_tensor(len(set(samples.texts)) / len(samples.texts)),
        }
        if clip_fraction is not None:
            found["train_clip_fraction"] = clip_fraction
        self.log_dict(found, on_step=False, on_epoch=True, batch_size=len(error), sync_dist=True)
