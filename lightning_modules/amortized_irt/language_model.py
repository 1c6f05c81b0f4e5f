"""Language models of ``transformers``: from plain values or a name, with adapters, without dropout."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from seedbed.checks import missing_extra
from seedbed.training import isolated_rng

PAPER_LORA = {"r": 64, "lora_alpha": 128, "lora_dropout": 0.1}
"""The paper's adapters of Llama-3.1-8B; without ``target_modules`` peft's choice for the architecture is
taken, which are the projections of queries and values there."""


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("transformers", "lm", "QuestionGeneratorModule") from error
    return transformers


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise missing_extra("peft", "lm", "QuestionGeneratorModule with lora") from error
    return peft


def build_language_model(
    model: Any, tokenizer: Any, pad_token_id: int, seed: int, *, frozen: bool = False
) -> Any:
    """Build the causal language model that a setting names.

    Parameters
    ----------
    model : dict, str or PreTrainedModel
        Settings of a configuration, ``model_type`` among them, for a model with random weights; a name or
        folder of ``transformers``, whose weights must be safetensors; or a model, which is taken as it is.
    tokenizer : Tokenizer
        Whose tokens the model has to know.
    pad_token_id : int
        Token of padding.
    seed : int
        Seed of random weights.
    frozen : bool
        Whether only adapters will be trained. Named weights keep their precision then; steps of an optimizer
        would be lost to rounding there, and they become float32 otherwise.

    Returns
    -------
    PreTrainedModel
        The model.

    Raises
    ------
    ImportError
        If ``transformers`` is missing.
    TypeError, ValueError
        If ``model`` is none of these, or knows fewer tokens than the tokenizer.
    """
    transformers = _transformers()
    if isinstance(model, str):
        with isolated_rng(seed):
            built = transformers.AutoModelForCausalLM.from_pretrained(
                model,
                use_safetensors=True,
                trust_remote_code=False,
                dtype="auto" if frozen else torch.float32,
            )
    elif isinstance(model, Mapping):
        if "model_type" not in model:
            raise ValueError(f"model must have a model_type, such as 'gpt2'; got {dict(model)!r}")
        _check_kernels(model)
        special = {
            "vocab_size": len(tokenizer),
            "bos_token_id": None,
            "eos_token_id": int(tokenizer.eos_token_id),
            "pad_token_id": pad_token_id,
        }
        with isolated_rng(seed):
            built = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(**(special | dict(model)))
            )
    elif isinstance(model, transformers.PreTrainedModel):
        built = model
    else:
        raise TypeError(
            "model must be a dict of settings, a name or a PreTrainedModel; "
            f"got {model!r} of type {type(model).__name__}"
        )
    known = built.get_input_embeddings().num_embeddings
    if known < len(tokenizer):
        raise ValueError(
            f"model must know the tokenizer's {len(tokenizer)} tokens, it has vocab_size={known}"
        )
    return built


def _check_kernels(settings: Mapping[Any, Any]) -> None:
    """Refuse settings that name a repository of compiled code, as a checkpoint of a stranger might."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _check_kernels(value)
        elif str(name).endswith("_implementation") and "/" in str(value):
            raise ValueError(f"model must not fetch code, got {name}={value!r}; take 'eager' or 'sdpa'")


def add_adapters(model: Any, lora: Mapping[str, Any], seed: int) -> Any:
    """Freeze a model and add low-rank adapters, which start as no change.

    Parameters
    ----------
    model : PreTrainedModel
        The model; it is changed in place.
    lora : mapping
        Settings of ``peft.LoraConfig`` that differ from :data:`PAPER_LORA`.
    seed : int
        Seed of the adapters.

    Returns
    -------
    PeftModel
        The model with adapters.

    Raises
    ------
    ImportError
        If ``peft`` is missing.
    ValueError
        If a setting is none that LoRA has.
    """
    peft = _peft()
    conv1d = any(type(part).__name__ == "Conv1D" for part in model.modules())
    settings = PAPER_LORA | {"task_type": "CAUSAL_LM", "fan_in_fan_out": conv1d} | dict(lora)
    try:
        config = peft.LoraConfig(**settings)
    except TypeError as error:
        raise ValueError(
            f"lora must hold settings of peft.LoraConfig, got {dict(lora)!r}: {error}"
        ) from error
    with isolated_rng(seed):
        return peft.get_peft_model(model, config)


def merged_copy(model: Any) -> Any:
    """Copy a model, its adapters merged into the weights.

    Parameters
    ----------
    model : PreTrainedModel or PeftModel
        The model.

    Returns
    -------
    PreTrainedModel
        A plain model that computes the same, all of whose weights can be trained.
    """
    copied = copy.deepcopy(model)
    if hasattr(copied, "merge_and_unload"):
        copied = copied.merge_and_unload()
    return copied.requires_grad_(True)


def frozen_copy(model: nn.Module) -> Any:
    """Copy a model that is never trained.

    Parameters
    ----------
    model : Module
        The model.

    Returns
    -------
    Module
        The copy. Its dropout is that of the model, see :func:`switch_off_dropout`.
    """
    return copy.deepcopy(model).requires_grad_(False).train()


def recompute_activations(model: Any) -> None:
    """Recompute activations in the backward pass rather than keep them.

    Parameters
    ----------
    model : PreTrainedModel or PeftModel
        The model; it is changed in place.
    """
    # transformers has renamed it; the old name still works there, with a warning.
    name = "activation_checkpointing_enable"
    enable = getattr(model, name if hasattr(model, name) else "gradient_checkpointing_enable")
    enable({"use_reentrant": False})


def switch_off_dropout(model: nn.Module) -> None:
    """Set every dropout probability to zero: the ratio of two policies must not be noise.

    Evaluation mode would do it too, but also switch off gradient checkpointing.

    Parameters
    ----------
    model : Module
        The model; it is changed in place.
    """
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        # Some architectures hand a number to the attention function.
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
