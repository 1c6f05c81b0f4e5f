"""QuestionGeneratorModule under the Trainer: resume, two processes, bf16, schedules, the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader

from conformance.ddp import run_ranks
from conformance.workers import Keep, quiet_trainer
from references.amortized_irt_generator import TINY, Fixed, fit_rank, module, prompts
from seedbed.datasets import DifficultyPromptDataModule, make_letter_questions
from seedbed.lightning_modules import QuestionGeneratorModule

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")

ADAPTERS = {"r": 2, "target_modules": ["c_attn"], "lora_dropout": 0.0}
STAGES = {
    "rloo": {"stage": "ppo", "ppo_epochs": 2, "mini_batch_size": 20},
    "gae": {"stage": "ppo", "advantage": "gae"},
    "adapters": {"stage": "ppo", "lora": ADAPTERS, "lr_scheduler": "cosine"},
    "dpo": {"stage": "dpo", "num_samples": 4, "lr_scheduler": "cosine"},
}
each_stage = pytest.mark.parametrize("settings", STAGES.values(), ids=STAGES)


def assert_same(a, b):
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


# --- checkpoints


@each_stage
def test_resume_equals_uninterrupted(settings, tmp_path):
    """From the middle of the second epoch on: weights, optimizer, schedule and sampler."""
    first = module(**settings)
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[Keep(tmp_path, 1)])
    trainer.fit(first, datamodule=prompts())
    middle = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem))[4]
    second = module(**settings)
    again = quiet_trainer(tmp_path, max_epochs=3)
    again.fit(second, datamodule=prompts(), ckpt_path=middle, weights_only=True)
    assert second.draws == first.draws == 3 * 4
    assert_same(first.state_dict(), second.state_dict())
    kept, found = (one.optimizers[0].state_dict() for one in (trainer, again))
    assert kept["param_groups"] == found["param_groups"]
    for key, state in kept["state"].items():
        assert_same(state, found["state"][key])


def test_a_stage_starts_from_the_checkpoint_of_another(tmp_path):
    """Also from the command line; the reference is the model that was handed on."""
    first = module(stage="sft", lora=ADAPTERS, difficulty_fn=None, template="{difficulty:+.1f}:",
                   tokenizer={"characters": "abcdefgh0123456789+-.:"})  # fmt: skip
    data = DifficultyPromptDataModule(
        n_questions=64, batch_size=16, template=first.format.template, tokenizer=first.format.tokenizer
    )
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(first, datamodule=data)
    trainer.save_checkpoint(tmp_path / "sft.ckpt")
    second = QuestionGeneratorModule(
        start_from=str(tmp_path / "sft.ckpt"),
        stage="ppo",
        difficulty_fn="seedbed.datasets.letter_difficulty",
        max_new_tokens=8,
        lr=1e-2,
    )
    prompt, mask = first.format.encode([0.5, -1.5])
    answer, answer_mask = first.format.encode_answers(["abc", "h"])
    rows = (prompt, mask, answer, answer_mask)
    before = first.policy.evaluate(*rows)[0].detach()
    assert not torch.equal(before, first.policy.evaluate_reference(*rows)), "the adapters have learned"
    for found in (second.policy.evaluate(*rows)[0].detach(), second.policy.evaluate_reference(*rows)):
        torch.testing.assert_close(found, before, atol=1e-5, rtol=1e-5)
    assert second.format.template == first.format.template
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(second, datamodule=data)
    trainer.save_checkpoint(tmp_path / "ppo.ckpt")
    (tmp_path / "sft.ckpt").unlink()
    third = QuestionGeneratorModule.load_from_checkpoint(tmp_path / "ppo.ckpt", weights_only=True)
    assert_same(second.state_dict(), third.state_dict())
    torch.testing.assert_close(third.policy.evaluate_reference(*rows), before, atol=1e-5, rtol=1e-5)
    assert third.generate([0.0, 1.0], 4).text == second.generate([0.0, 1.0], 4).text


def test_settings_that_would_fetch_code_are_refused():
    for settings in (
        {"attn_implementation": "someone/kernel"},
        {"text_config": {"_attn_implementation": "a/b"}},
    ):
        with pytest.raises(ValueError, match="model must not fetch code"):
            QuestionGeneratorModule(TINY | settings)


# --- several processes, precision


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"stage": "ppo"}, {"stage": "ppo", "advantage": "gae"}, {"stage": "dpo", "num_samples": 4}],
    ids=["rloo", "gae", "dpo"],
)
def test_two_processes_equal_one_on_the_joined_batches(settings, tmp_path):
    settings = settings | {"optimizer": "sgd", "lr": 0.1}
    (first, shares, drawn), (second, other_shares, other_drawn) = run_ranks(
        fit_rank, 2, settings, str(tmp_path)
    )
    assert_same(first, second)
    assert_same(drawn, other_drawn)
    joined = [
        tuple(torch.cat(parts) for parts in zip(*both, strict=True))
        for both in zip(shares, other_shares, strict=True)
    ]
    one = module(cls=Fixed, **settings)
    before = {name: value.clone() for name, value in one.state_dict().items()}
    quiet_trainer(tmp_path, max_epochs=1, limit_val_batches=0).fit(
        one, DataLoader(joined, batch_size=None), []
    )
    moved = False
    for name, value in one.state_dict().items():
        torch.testing.assert_close(first[name], value, atol=2e-6, rtol=1e-5)
        moved |= not torch.allclose(value, before[name], atol=1e-4)
    assert moved


@each_stage
def test_bf16_mixed(settings, tmp_path):
    one = module(**settings)
    ratios, original = [], one._ppo_loss

    def spy(*args):
        loss, ratio = original(*args)
        ratios.append(ratio)
        return loss, ratio

    one._ppo_loss = spy
    trainer = quiet_trainer(tmp_path, max_epochs=1, precision="bf16-mixed")
    trainer.fit(one, datamodule=prompts())
    assert all(value.isfinite().all() for value in trainer.callback_metrics.values())
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in one.parameters())
    if one.stage == "ppo":
        assert (ratios[0] == 1).all(), "what drew the samples and what learns have one precision"
        assert not (ratios[-1] == 1).all()


# --- schedules, the command line


@pytest.mark.parametrize("mini_batch_size", [None, 12])
@pytest.mark.parametrize("limit", [{"max_epochs": 2}, {"max_steps": 24}])
def test_the_cosine_ends_with_the_training(mini_batch_size, limit, tmp_path):
    """However many optimizer steps a batch takes."""
    one = module(
        stage="ppo", lr_scheduler="cosine", mini_batch_size=mini_batch_size, ppo_epochs=2, warmup=0.25
    )
    data = prompts(60, batch_size=6) if "max_steps" in limit else prompts(25, batch_size=6)
    trainer = quiet_trainer(tmp_path, **limit)
    trainer.fit(one, datamodule=data)
    (schedule,) = (config.scheduler for config in trainer.lr_scheduler_configs)
    assert schedule.last_epoch > 2
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def run(settings, folder):
    """Fit from a configuration file, on this machine and quietly."""
    settings["trainer"] |= {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0,
        "default_root_dir": str(folder),
    }  # fmt: skip
    config = folder / "run.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return LightningCLI(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=None,
        seed_everything_default=False,
        args=["fit", "--config", str(config)],
    )


def example(name):
    """Settings in an example's file."""
    path = Path(__file__).parents[2] / "examples" / name
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def lines(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_the_papers_settings_run(tmp_path, monkeypatch):
    """The examples' files, with a small Llama and an alphabet in place of what would have to be fetched."""
    pytest.importorskip("peft")
    pytest.importorskip("jsonargparse")
    monkeypatch.setattr("sys.argv", ["seedbed"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    supervised, reinforced = (example(f"amortized_irt_generator{end}.yaml") for end in ("", "_ppo"))
    model, data = (supervised[part]["init_args"] for part in ("model", "data"))
    assert (model["template"], model["chat_template"]) == (data["template"], data["chat_template"])
    # An alphabet that the command line does not take for a piece of YAML.
    letters = "".join(sorted(set(model["template"] + "abcdefgh0123456789.-") - set("{}"), reverse=True))
    model |= {
        "model": {"model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                  "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128},
        "tokenizer": {"characters": letters}, "chat_template": False, "max_new_tokens": 13,
    }  # fmt: skip
    questions = make_letter_questions(100, random_state=0)
    rows = [
        {"text": text, "difficulty": float(value), "context": "letters"}
        for text, value in zip(questions.text, questions.difficulty, strict=True)
    ]
    alike = {"tokenizer": {"characters": letters}, "chat_template": False}
    data |= alike | {"path": lines(tmp_path / "questions.jsonl", rows)}
    supervised["trainer"]["max_epochs"] = 2
    first = run(supervised, tmp_path)
    trained = {name: value for name, value in first.model.named_parameters() if value.requires_grad}
    assert {part for name in trained for part in name.split(".") if part.endswith("_proj")} == {
        "q_proj",
        "v_proj",
    }
    assert {tuple(sorted(value.shape)) for value in trained.values()} == {(16, 64)}
    assert any(value.abs().sum() > 0 for name, value in trained.items() if "lora_B" in name)
    first.trainer.save_checkpoint(tmp_path / "generator.ckpt")

    model, data = (reinforced[part]["init_args"] for part in ("model", "data"))
    model |= {
        "start_from": str(tmp_path / "generator.ckpt"), "max_new_tokens": 13,
        "difficulty_fn": "seedbed.datasets.letter_difficulty",
    }  # fmt: skip
    prompts = [{name: row[name] for name in ("difficulty", "context")} for row in rows]
    data |= alike | {"path": lines(tmp_path / "prompts.jsonl", prompts)}
    reinforced["trainer"]["limit_train_batches"] = 2
    second = run(reinforced, tmp_path)
    assert second.trainer.global_step == 2 * 4 * 8 * 4 / 2
    assert second.model.format.template == first.model.format.template
    assert {"train_kl", "train_length", "train_distinct", "val_difficulty_error"} <= set(
        second.trainer.callback_metrics
    )
    found = second.model.generate([0.0, 1.0], n_candidates=4, contexts=["letters"] * 2)
    assert len(found.text) == 2


def test_drawn_tokens_follow_the_distribution():
    """Drawn with a cache and padding in front, they are those of each text read as a whole."""
    one = module(stage="sft").eval()
    prompt, prompt_mask = one.format.encode([0.5, -11.25, 3.0])
    u = torch.rand(3, 8, generator=torch.Generator().manual_seed(0))
    tokens, mask = one.policy.sample(prompt, prompt_mask, u, temperature=0.7)
    with torch.no_grad():
        for row in range(3):
            text = prompt[row][prompt_mask[row] > 0]
            for step in range(int(mask[row].sum())):
                logits = one.policy.model(input_ids=text[None]).logits[0, -1].double() / 0.7
                below = torch.softmax(logits, -1).cumsum(-1)
                expected = int((below <= u[row, step]).sum())
                assert int(tokens[row, step]) == expected
                text = torch.cat([text, tokens[row, step : step + 1]])
    ended = (tokens == one.policy.eos_token_id) & (mask > 0)
    np.testing.assert_array_equal(
        mask.sum(1), np.where(ended.any(1), ended.float().argmax(1) + 1, mask.shape[1])
    )
