"""QuestionGeneratorModule: its objectives, that it learns in every stage, and that nothing strange is run."""

import copy
import math
import sys

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer

from references.amortized_irt_generator import (
    answer_log_probs,
    clipped_surrogate,
    generalised_advantages,
    leave_one_out,
    preference_loss,
)
from seedbed.datasets import (
    CharacterTokenizer,
    DifficultyPromptDataModule,
    PromptBatch,
    letter_difficulty,
    make_letter_questions,
)
from seedbed.datasets.difficulty_prompts import LETTER_CHARACTERS
from seedbed.estimators import AmortizedIRT, Items, simulate_responses
from seedbed.lightning_modules import QuestionGeneratorModule
from seedbed.lightning_modules.amortized_irt.objectives import (
    dpo_losses,
    gae_advantages,
    ppo_losses,
    rloo_advantages,
)

pytest.importorskip("transformers")

TINY = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 48}
SMALL = {
    "model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 48,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


def module(model=TINY, **settings):
    given = {"difficulty_fn": "seedbed.datasets.letter_difficulty", "max_new_tokens": 14} | settings
    return QuestionGeneratorModule(copy.deepcopy(model), **given)


def train(one, steps, batch_size=32, n_questions=2000, **wording):
    questions = make_letter_questions(n_questions, random_state=0)
    data = DifficultyPromptDataModule(questions.text, questions.difficulty, batch_size=batch_size, **wording)
    trainer = Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(one, datamodule=data)
    return trainer


def distance(one, n_candidates=1, n=64):
    """Mean distance of predicted and wanted difficulty."""
    wanted = np.random.default_rng(1).standard_normal(n)
    found = one.generate(wanted, n_candidates=n_candidates)
    np.testing.assert_allclose(found.difficulty.numpy(), letter_difficulty(found.text), atol=1e-5)
    return float(np.abs(found.difficulty.numpy() - wanted).mean())


# --- objectives


def test_objectives_equal_plain_readings():
    rng = np.random.default_rng(0)
    rewards = rng.standard_normal((3, 4))
    found = rloo_advantages(torch.tensor(rewards))
    np.testing.assert_allclose(found.numpy(), leave_one_out(rewards.tolist()), atol=1e-12)

    lengths, values = [5, 3], rng.standard_normal((2, 5))
    gains = rng.standard_normal((2, 5))
    mask = torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
    advantages, returns = gae_advantages(
        torch.tensor(gains), torch.tensor(values), mask, discount=0.9, gae_lambda=0.7
    )
    for row, length in enumerate(lengths):
        expected = generalised_advantages(gains[row], values[row], length, 0.9, 0.7)
        np.testing.assert_allclose(advantages[row, :length].numpy(), expected, atol=1e-12)
        np.testing.assert_allclose(returns[row, :length].numpy(), expected + values[row, :length], atol=1e-12)
    assert (advantages[1, 3:] == 0).all()

    new, old, gain = rng.standard_normal((3, 2, 4)) * 0.4
    losses, ratio = ppo_losses(torch.tensor(new), torch.tensor(old), torch.tensor(gain), clip=0.2)
    expected = [
        [clipped_surrogate(*cell, 0.2) for cell in zip(*rows, strict=True)]
        for rows in zip(new, old, gain, strict=True)
    ]
    np.testing.assert_allclose(losses.numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(ratio.numpy(), np.exp(new - old), atol=1e-12)

    pairs = rng.standard_normal((4, 6))
    found = dpo_losses(*(torch.tensor(row) for row in pairs), beta=0.3)
    np.testing.assert_allclose(found.numpy(), [preference_loss(*pair, 0.3) for pair in pairs.T], atol=1e-12)


def test_prompts_and_padding_carry_no_loss():
    """The supervised loss is that of the questions' tokens and ends, whatever pads them."""
    one = module(difficulty_fn=None).eval()
    texts, wanted = ["abc", "hgfedcba", "d"], [0.5, -11.25, 0.0]
    prompt, prompt_mask = one.format.encode(wanted)
    answer, answer_mask = one.format.encode_answers(texts)
    with torch.no_grad():
        found = one.policy.evaluate(prompt, prompt_mask, answer, answer_mask)[0]
        total = 0.0
        for row in range(3):
            before = prompt[row][prompt_mask[row] > 0]
            after = answer[row][answer_mask[row] > 0]
            assert len(after) == len(texts[row]) + 1, "the end belongs to the question"
            logits = one.policy.model(input_ids=torch.cat([before, after])[None]).logits[0].double()
            expected = answer_log_probs(logits.tolist(), len(before), after.tolist())
            np.testing.assert_allclose(found[row, : len(after)].numpy(), expected, atol=1e-4)
            assert (found[row, len(after) :] == 0).all()
            total -= sum(expected)
        batch = PromptBatch(prompt, prompt_mask, answer, answer_mask, torch.tensor(wanted))
        loss = one._sft_step(batch)
    assert float(loss) == pytest.approx(total / int(answer_mask.sum()), abs=1e-4)
    wider = torch.nn.functional.pad(answer, (0, 3), value=5)
    wider_mask = torch.nn.functional.pad(answer_mask, (0, 3))
    with torch.no_grad():
        again = one.policy.evaluate(prompt, prompt_mask, wider, wider_mask)[0]
    np.testing.assert_allclose(again[:, : found.shape[1]].numpy(), found.numpy(), atol=1e-5)


# --- learning


def test_supervised_fine_tuning_learns_the_questions():
    one = module(lr=1e-2)
    before = train(one, 1).callback_metrics["train_loss"]
    after = train(one, 60).callback_metrics["train_loss"]
    assert after < 0.75 * before
    written = one.generate(np.zeros(20), n_candidates=1).text
    assert sum(set(text) <= set("abcdefgh") and text != "" for text in written) >= 18


@pytest.mark.parametrize(("stage", "advantage"), [("ppo", "rloo"), ("ppo", "gae"), ("dpo", "rloo")])
def test_own_samples_are_reinforced(stage, advantage):
    """A few steps towards difficulty 1.5 alone move what is written that way."""
    one = module(stage=stage, advantage=advantage, lr=2e-2, num_samples=8)
    data = DifficultyPromptDataModule(difficulties=[1.5] * 64, batch_size=16)
    before = letter_difficulty(one.generate([1.5] * 64, n_candidates=1).text).mean()
    trainer = Trainer(
        max_epochs=8, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(one, datamodule=data)
    after = letter_difficulty(one.generate([1.5] * 64, n_candidates=1).text).mean()
    assert after > before + 0.3
    assert {"train_difficulty_error", "train_kl", "train_length", "train_distinct"} <= set(
        trainer.callback_metrics
    )


def test_best_of_many_is_nearer_than_one():
    one = module()
    assert distance(one, 16) < 0.6 * distance(one, 1)
    with pytest.raises(ValueError, match="n_candidates=4 needs difficulty_fn"):
        module(difficulty_fn=None).generate([0.0], n_candidates=4)


@pytest.mark.slow
def test_each_stage_brings_written_questions_nearer():
    """Sixty batches: PPO lowers the distance by 40 %, DPO by 25 %; best of 8 is below one sample.

    Measured with this seed: 62 % (leave-one-out), 47 % (value head), 41 % (DPO). Over seeds 0 to 3 they are
    39 to 65 %, 23 to 57 % and 24 to 41 %, least where the supervised model is best.
    """
    wording = {"template": "{difficulty:+.1f}:", "tokenizer": CharacterTokenizer(LETTER_CHARACTERS)}
    one = module(SMALL, lr=3e-3, **wording)
    train(one, 200, batch_size=64, n_questions=8000, **wording)
    supervised = distance(one, n=256)
    assert distance(one, 8, n=256) < 0.4 * supervised
    for advantage in ("rloo", "gae"):
        ppo = one.next_stage("ppo", advantage=advantage, lr=2e-3)
        train(ppo, 60 * ppo.ppo_epochs, **wording)
        assert distance(ppo, n=256) < 0.6 * supervised
        assert distance(ppo, 8, n=256) < distance(ppo, n=256)
    dpo = one.next_stage("dpo", lr=2e-3)
    train(dpo, 60, **wording)
    assert distance(dpo, n=256) < 0.75 * supervised
    assert distance(one, n=256) == pytest.approx(supervised), "the first module stays as it is"


def test_a_strong_leash_holds_the_policy():
    loose, held = (module(stage="ppo", lr=1e-2, kl_coef=beta) for beta in (0.0, 1e3))
    divergence = [
        abs(float(train(one, 40, batch_size=16).callback_metrics["train_kl"])) for one in (loose, held)
    ]
    assert divergence[1] < 0.2 * divergence[0]


def test_the_first_ratio_is_exactly_one():
    one = module(stage="ppo", ppo_epochs=3, mini_batch_size=48, lr=1e-2)
    seen = []
    original = one._ppo_loss

    def spy(*args):
        loss, ratio = original(*args)
        seen.append(ratio)
        return loss, ratio

    one._ppo_loss = spy
    train(one, 1)
    assert len(seen) == 3 * math.ceil(32 * 4 / 48)
    assert (seen[0] == 1).all()
    assert not any((ratio == 1).all() for ratio in seen[1:])


# --- adapters, stages, checkpoints


def test_adapters():
    pytest.importorskip("peft")
    one = module(stage="ppo", lora={"r": 4, "target_modules": ["c_attn"]}, lr=1e-2)
    trained = [name for name, part in one.named_parameters() if part.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)
    prompt, mask = one.format.encode([0.5])
    answer, answer_mask = one.format.encode_answers(["abc"])
    before = one.policy.evaluate_reference(prompt, mask, answer, answer_mask)
    train(one, 8)
    after = one.policy.evaluate_reference(prompt, mask, answer, answer_mask)
    np.testing.assert_array_equal(after.numpy(), before.numpy())
    moved = one.policy.evaluate(prompt, mask, answer, answer_mask)[0].detach()
    assert not np.allclose(moved.numpy(), before.numpy())
    merged = one.next_stage("dpo", lora=None)
    same = merged.policy.evaluate(prompt, mask, answer, answer_mask)[0].detach()
    np.testing.assert_allclose(same.numpy(), moved.numpy(), atol=1e-4)


def test_a_stranger_names_no_function(tmp_path):
    """A checkpoint may name any function; it is called only if the caller says so."""
    one = module()
    trainer = Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(one, datamodule=DifficultyPromptDataModule(n_questions=64))
    path = tmp_path / "strange.ckpt"
    trainer.save_checkpoint(path)
    state = torch.load(path, weights_only=True)
    state["hyper_parameters"]["difficulty_fn"] = "os.system"
    torch.save(state, path)
    loaded = QuestionGeneratorModule.load_from_checkpoint(path)
    with pytest.raises((ValueError, TypeError), match="difficulty_fn"):
        loaded.generate([0.0], n_candidates=2)
    fine = QuestionGeneratorModule.load_from_checkpoint(path, difficulty_fn=letter_difficulty)
    assert len(fine.generate([0.0], n_candidates=2).text) == 1


# --- bad input


def test_bad_difficulty_functions():
    for function, words in (
        (lambda texts: [0.0], "one number per text"),
        (lambda texts: [float("nan")] * len(texts), "finite"),
    ):
        with pytest.raises(ValueError, match=f"difficulty_fn must return.*{words}"):
            module(difficulty_fn=function).generate([0.0, 1.0], n_candidates=2)
    with pytest.raises(ValueError, match="difficulty_fn"):
        module(stage="ppo", difficulty_fn=None)
    with pytest.raises(TypeError, match="difficulty_fn must be"):
        module(difficulty_fn=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stage", "rl"),
        ("advantage", "a2c"),
        ("clip", 0.0),
        ("kl_coef", -1.0),
        ("num_samples", 1),
        ("lr", 0.0),
    ],
)
def test_bad_settings(name, value):
    stage = {} if name == "stage" else {"stage": "ppo"}
    with pytest.raises(ValueError, match=name):
        module(**stage, **{name: value})


def test_wordings_must_agree():
    one = module(template="{difficulty:.1f}>", tokenizer=CharacterTokenizer("0123456789.->abcdefgh"))
    with pytest.raises(ValueError, match="same template"):
        train(one, 1)


@pytest.mark.parametrize(("package", "settings"), [("transformers", {}), ("peft", {"lora": {}})])
def test_missing_extras(package, settings, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"seedbed\[lm\]"):
        module(**settings)


def test_an_estimator_says_how_hard():
    """Difficulties calibrated on answers and predicted from the text, standard deviations set aside."""

    def encode(texts):
        return np.array([[text.count(letter) for letter in "abcdefgh"] for text in texts], dtype=float)

    asked = make_letter_questions(80, random_state=0)
    takers = np.random.default_rng(0).standard_normal(200)
    answers = simulate_responses(takers, Items.of(asked.difficulty), random_state=0)
    model = AmortizedIRT(feature_encoder=encode).fit(answers, item_features=asked.text)
    found = module(difficulty_fn=model).generate([1.0] * 10, n_candidates=32)
    np.testing.assert_allclose(found.difficulty.numpy(), model.predict_difficulty(found.text)[0], atol=1e-5)
    np.testing.assert_allclose(found.difficulty.numpy(), letter_difficulty(found.text), atol=0.2)
