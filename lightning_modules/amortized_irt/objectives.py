"""The objectives of a question generator: log-probabilities, advantages, and the losses made of them.

Tokens of an answer are laid out as (n, t) with a mask that is 1 up to and including the token that ends it.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid


def token_log_probs(logits: Float[Tensor, "n t v"], tokens: Int[Tensor, "n t"]) -> Float[Tensor, "n t"]:
    """Log-probability of each token under its logits, in float32.

    Parameters
    ----------
    logits : Tensor of shape (n, t, v)
        Logits of the token at each place.
    tokens : Tensor of int64, shape (n, t)
        The tokens.

    Returns
    -------
    Tensor of float32, shape (n, t)
        Log-probabilities.
    """
    logits = logits.float()
    chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen - logits.logsumexp(-1)


def rloo_advantages(rewards: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Leave-one-out advantages: each sample's reward minus the mean of the others of its prompt.

    Parameters
    ----------
    rewards : Tensor of shape (n, k)
        Rewards of k samples for each of n prompts, k at least 2.

    Returns
    -------
    Tensor of shape (n, k)
        Advantages, which sum to zero for each prompt.

    Raises
    ------
    ValueError
        If there is a single sample.

    Examples
    --------
    >>> import torch
    >>> rloo_advantages(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[-3.0000, -1.5000,  4.5000]])
    """
    k = rewards.shape[1]
    if k < 2:
        raise ValueError(f"leave-one-out advantages need 2 samples per prompt or more, got {k}")
    return (rewards - rewards.mean(1, keepdim=True)) * (k / (k - 1))


def gae_advantages(
    rewards: Float[Tensor, "n t"],
    values: Float[Tensor, "n t"],
    mask: Int[Tensor, "n t"],
    *,
    discount: float = 1.0,
    gae_lambda: float = 0.95,
) -> tuple[Float[Tensor, "n t"], Float[Tensor, "n t"]]:
    """Generalised advantage estimation: ``A_t = sum_l (discount gae_lambda)^l delta_(t+l)``.

    With ``delta_t = r_t + discount V_(t+1) - V_t``; after the last token of an answer the value is 0.

    Parameters
    ----------
    rewards : Tensor of shape (n, t)
        Reward that follows each token.
    values : Tensor of shape (n, t)
        Value before each token.
    mask : Tensor of int64, shape (n, t)
        1 where there is a token.
    discount : float in [0, 1]
        Weight of a reward one token later.
    gae_lambda : float in [0, 1]
        1 for whole returns (no bias), 0 for one step (little variance).

    Returns
    -------
    advantages, returns : Tensor of shape (n, t)
        ``returns`` is advantages plus values, what the values should be; both are 0 where there is no token.

    Examples
    --------
    >>> import torch
    >>> rewards, mask = torch.tensor([[0.0, 1.0, 5.0]]), torch.tensor([[1, 1, 0]])
    >>> gae_advantages(rewards, torch.zeros(1, 3), mask, discount=0.5, gae_lambda=1.0)[0]
    tensor([[0.5000, 1.0000, 0.0000]])
    """
    keep = mask.to(rewards.dtype)
    rewards, values = rewards * keep, values * keep
    after = torch.cat([values[:, 1:], values.new_zeros(len(values), 1)], dim=1)
    delta = rewards + discount * after - values
    advantages = torch.zeros_like(delta)
    running = delta.new_zeros(len(delta))
    for step in reversed(range(delta.shape[1])):
        running = delta[:, step] + discount * gae_lambda * running
        advantages[:, step] = running
    return advantages, advantages + values


def ppo_losses(
    log_probs: Float[Tensor, "n t"],
    old_log_probs: Float[Tensor, "n t"],
    advantages: Float[Tensor, "n t"],
    *,
    clip: float = 0.2,
) -> tuple[Float[Tensor, "n t"], Float[Tensor, "n t"]]:
    """PPO's clipped surrogate, ``-min(rho A, clip(rho, 1 - clip, 1 + clip) A)`` for each token.

    Parameters
    ----------
    log_probs, old_log_probs : Tensor of shape (n, t)
        Of the tokens under the policy and under the one that drew them; ``rho`` is their ratio.
    advantages : Tensor of shape (n, t)
        Advantages.
    clip : float
        How far the ratio may move with a gain.

    Returns
    -------
    losses, ratio : Tensor of shape (n, t)
        Of each token.

    Examples
    --------
    >>> import torch
    >>> old, new = torch.zeros(1, 2), torch.tensor([[0.5, -0.5]])
    >>> ppo_losses(new, old, torch.ones(1, 2))[0]
    tensor([[-1.2000, -0.6065]])
    """
    ratio = torch.exp(log_probs - old_log_probs)
    losses = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return losses, ratio


def dpo_losses(
    chosen: Float[Tensor, "n"],
    rejected: Float[Tensor, "n"],
    reference_chosen: Float[Tensor, "n"],
    reference_rejected: Float[Tensor, "n"],
    *,
    beta: float = 0.5,
) -> Float[Tensor, "n"]:
    """DPO's loss, ``-log sigmoid(beta [(log pi/pi_ref)_w - (log pi/pi_ref)_l])`` for each pair.

    Parameters
    ----------
    chosen, rejected : Tensor of shape (n,)
        Log-probabilities of whole answers under the policy.
    reference_chosen, reference_rejected : Tensor of shape (n,)
        Under the reference.
    beta : float
        How strongly the policy is held to the reference.

    Returns
    -------
    Tensor of shape (n,)
        Losses; log 2 where policy and reference agree.

    Examples
    --------
    >>> import torch
    >>> zero = torch.zeros(1)
    >>> dpo_losses(zero, zero, zero, zero)
    tensor([0.6931])
    """
    return -logsigmoid(beta * ((chosen - reference_chosen) - (rejected - reference_rejected)))
