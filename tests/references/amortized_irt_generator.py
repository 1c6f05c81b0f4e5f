"""Plain readings of PPO, leave-one-out and generalised advantages, and DPO, loops and all."""

import math


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
