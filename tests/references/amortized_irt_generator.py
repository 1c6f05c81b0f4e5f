"""Plain readings of PPO, leave-one-out and generalised advantages, and DPO, loops and all."""

import copy
import math
import warnings

from conformance.workers import Collect, quiet_trainer
from seedbed.datasets import DifficultyPromptDataModule
from seedbed.lightning_modules import QuestionGeneratorModule
from seedbed.lightning_modules.amortized_irt.writer import Samples

TINY = {
    "model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 48,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


def leave_one_out(rewards):
    """Reward of each sample minus the mean of the others of its prompt."""
    found = []
    for row in rewards:
        found.append([r - (sum(row) - r) / (len(row) - 1) for r in row])
    return found


def generalised_advantages(rewards, values, length, discount, gae_lambda):
    """A_t = sum_l (discount lambda)^l (r_(t+l) + discount V_(t+l+1) - V_(t+l)), one answer."""
    found = []
    for t in range(length):
        total = 0.0
        for step in range(length - t):
            after = values[t + step + 1] if t + step + 1 < length else 0.0
            delta = rewards[t + step] + discount * after - values[t + step]
            total += (discount * gae_lambda) ** step * delta
        found.append(total)
    return found


def clipped_surrogate(log_prob, old_log_prob, advantage, clip):
    """-min(rho A, clip(rho) A), one token."""
    rho = math.exp(log_prob - old_log_prob)
    return -min(rho * advantage, min(max(rho, 1 - clip), 1 + clip) * advantage)


def preference_loss(chosen, rejected, reference_chosen, reference_rejected, beta):
    """-log sigma(beta [...]), one pair."""
    margin = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    return math.log(1 + math.exp(-margin))


def answer_log_probs(logits, prompt_length, tokens):
    """Log-probability of each token of an answer that follows a prompt, from logits at every place."""
    found = []
    for step, token in enumerate(tokens):
        row = logits[prompt_length + step - 1]
        top = max(row)
        found.append(row[token] - top - math.log(sum(math.exp(x - top) for x in row)))
    return found


def module(cls=QuestionGeneratorModule, **settings):
    """A tiny generator."""
    given = {
        "difficulty_fn": "seedbed.datasets.letter_difficulty",
        "max_new_tokens": 8,
        "lr": 1e-2,
    } | settings
    return cls(copy.deepcopy(TINY), **given)


def prompts(n=40, batch_size=8):
    """Prompts alone."""
    return DifficultyPromptDataModule(n_prompts=n, batch_size=batch_size)


class Fixed(QuestionGeneratorModule):
    """Instead of samples, answers that depend on the prompt alone: alike however rows are spread."""

    def _draw_batch(self, batch):
        k = self.num_samples
        texts = []
        for z in batch.difficulty.tolist():
            for n in range(k):
                length = 1 + (int(abs(z) * 1000) + 3 * n) % 8
                texts.append("abcdefgh"[:length] if n % 2 else "hgfedcba"[:length])
        tokens, mask = self.format.encode_answers(texts)
        given = (part.repeat_interleave(k, 0) for part in (batch.prompt, batch.prompt_mask))
        error = self.predict_difficulty(texts).reshape(-1, k) - batch.difficulty.unsqueeze(1)
        return Samples(*given, tokens, mask, texts), error.abs()


def fit_rank(rank, settings, folder):
    """Fit as one of two processes: weights and batches with fixed answers, weights with drawn ones."""
    warnings.filterwarnings("ignore")
    ends, collect = [], Collect()
    for cls in (Fixed, QuestionGeneratorModule):
        one = module(cls=cls, **settings)
        trainer = quiet_trainer(folder, strategy="ddp", devices=2, max_epochs=1, callbacks=[collect])
        trainer.fit(one, datamodule=prompts())
        assert trainer.world_size == 2
        ends.append(one.state_dict())
    return ends[0], collect.batches[: len(collect.batches) // 2], ends[1]
