"""The settings of a question generator, checked before any work."""

from typing import Any, Literal

from seedbed.checks import check_choice, check_number

Stage = Literal["sft", "ppo", "dpo"]
STAGES = ("sft", "ppo", "dpo")
ADVANTAGES = ("rloo", "gae")
OPTIMIZERS = ("adam", "adamw", "sgd")
SAMPLES = {"sft": 1, "ppo": 4, "dpo": 8}
"""Samples per prompt where their number is not given."""


def check_settings(settings: dict[str, Any]) -> None:
    """Check the plain settings of :class:`~seedbed.lightning_modules.QuestionGeneratorModule`.

    Parameters
    ----------
    settings : dict
        Its parameters by name.

    Raises
    ------
    TypeError, ValueError
        If one is out of range; the message has its name and what is allowed.
    """
    check_choice("stage", settings["stage"], STAGES)
    check_choice("advantage", settings["advantage"], ADVANTAGES)
    for name in ("max_new_tokens", "ppo_epochs", "n_candidates"):
        check_number(name, settings[name], low=1, integer=True)
    for name in ("kl_coef", "value_coef", "weight_decay"):
        check_number(name, settings[name], low=0)
    for name in ("lr", "dpo_beta"):
        check_number(name, settings[name], low=0, closed="neither")
    for name in ("discount", "gae_lambda"):
        check_number(name, settings[name], low=0, high=1)
    check_number("clip", settings["clip"], low=0, high=1, closed="neither")
    check_number("warmup", settings["warmup"], low=0, high=1, closed="left")
    check_number("random_state", settings["random_state"], low=0, integer=True)
    if settings["mini_batch_size"] is not None:
        check_number("mini_batch_size", settings["mini_batch_size"], low=1, integer=True)
    if settings["max_grad_norm"] is not None:
        check_number("max_grad_norm", settings["max_grad_norm"], low=0, closed="neither")
    if not callable(settings["optimizer"]):
        check_choice("optimizer", settings["optimizer"], OPTIMIZERS)
    if settings["lr_scheduler"] is not None and not callable(settings["lr_scheduler"]):
        check_choice("lr_scheduler", settings["lr_scheduler"], ("cosine",))
    _check_samples(settings)
    if (settings["model"] is None) == (settings["start_from"] is None):
        raise ValueError(
            f"give either model or start_from, got {settings['model']!r} and {settings['start_from']!r}"
        )


def is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold a setting without code or a model.

    Parameters
    ----------
    value : object
        The setting.

    Returns
    -------
    bool
        True for None, numbers, strings, and lists and dicts of such.
    """
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


def _check_samples(settings: dict[str, Any]) -> None:
    """Check what depends on the stage."""
    stage, num_samples = settings["stage"], settings["num_samples"]
    if num_samples is not None:
        pairs = stage == "dpo" or (stage == "ppo" and settings["advantage"] == "rloo")
        check_number("num_samples", num_samples, low=2 if pairs else 1, integer=True)
    if settings["difficulty_fn"] is None:
        if stage != "sft":
            raise ValueError(
                f"stage={stage!r} needs difficulty_fn, which says how hard a question is; got None"
            )
        if settings["n_candidates"] > 1:
            raise ValueError(
                f"n_candidates={settings['n_candidates']} needs difficulty_fn to choose by, got None"
            )
