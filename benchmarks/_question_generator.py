"""A tiny language model taught to write strings of letters of a wanted difficulty, stage by stage."""

import numpy as np
from lightning.pytorch import Trainer

from seedbed.datasets import DifficultyPromptDataModule, make_letter_questions
from seedbed.lightning_modules import QuestionGeneratorModule

MODEL = {
    "model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 48,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
WANTED = 256


def stages(seed: int) -> dict[str, float]:
    """Mean distance of predicted and wanted difficulty after each stage."""
    written = QuestionGeneratorModule(
        dict(MODEL),
        difficulty_fn="seedbed.datasets.letter_difficulty",
        max_new_tokens=14,
        lr=3e-3,
        random_state=seed,
    )
    found = {"untrained": _distance(written)}
    _train(written, 300, seed)
    found["supervised"] = _distance(written)
    found["supervised, best of 8"] = _distance(written, 8)
    for stage, name, steps in (("ppo", "PPO", 480), ("dpo", "DPO", 400)):
        further = written.next_stage(stage, lr=1e-3)
        _train(further, steps, seed)
        found[f"supervised, then {name}"] = _distance(further)
    return found


def _train(module: QuestionGeneratorModule, steps: int, seed: int) -> None:
    questions = make_letter_questions(2000, random_state=seed)
    data = DifficultyPromptDataModule(questions.text, questions.difficulty, batch_size=32)
    Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    ).fit(module, datamodule=data)


def _distance(module: QuestionGeneratorModule, n_candidates: int = 1) -> float:
    wanted = np.random.default_rng(1).standard_normal(WANTED)
    found = module.generate(wanted, n_candidates=n_candidates)
    assert found.difficulty is not None
    return float(np.abs(found.difficulty.numpy() - wanted).mean())
