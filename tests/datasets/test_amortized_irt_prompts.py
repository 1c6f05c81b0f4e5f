"""Prompts that ask for a difficulty, their tokens, and toy questions whose difficulty is known."""

import json

import numpy as np
import pytest
import torch

from seedbed.datasets import (
    CharacterTokenizer,
    DifficultyPromptDataModule,
    PromptBatch,
    PromptFormat,
    letter_difficulty,
    make_letter_questions,
)


def test_toy_questions():
    drawn = make_letter_questions(4000, random_state=0)
    np.testing.assert_allclose(drawn.difficulty, letter_difficulty(drawn.text))
    assert abs(drawn.difficulty.mean()) < 0.06
    assert drawn.difficulty.std() == pytest.approx(1.0, abs=0.04)
    assert letter_difficulty(["aaa"])[0] < letter_difficulty(["ddd"])[0] < letter_difficulty(["hhh"])[0]
    assert make_letter_questions(3, random_state=1).text == make_letter_questions(3, random_state=1).text
    with pytest.raises(ValueError, match="n_questions"):
        make_letter_questions(0)


def test_tokens_come_back():
    tokenizer = CharacterTokenizer("abc ")
    ids = tokenizer(["cab", ""], add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in ids] == ["cab", ""]
    with pytest.raises(ValueError, match="z"):
        tokenizer(["az"])


def test_prompts_are_padded_in_front_and_questions_behind():
    data = DifficultyPromptDataModule(["ab", "b", "abcd"] * 8, [0.5, -12.0, 0.0] * 8, batch_size=12)
    for batch in data.train_dataloader():
        assert (batch.prompt_mask[:, -1] == 1).all()
        assert (batch.prompt_mask.diff(dim=1) >= 0).all()
        assert (batch.answer_mask.diff(dim=1) <= 0).all()
        for row in range(len(batch.prompt)):
            text = data.decode(batch.prompt[row][batch.prompt_mask[row] > 0])
            assert float(text.rstrip(":")) == pytest.approx(float(batch.difficulty[row]))
    rows = [
        len(list(loader().dataset))
        for loader in (data.train_dataloader, data.val_dataloader, data.test_dataloader)
    ]
    assert sum(rows) == 24


def test_padding_that_no_row_needs_is_cut():
    wording = PromptFormat("{difficulty:.1f}:", {"characters": "0123456789.:-ab"})
    batch = PromptBatch(
        *wording.encode([1.0, -100.5, 2.0]), *wording.encode_answers(["a", "abab", ""]), torch.zeros(3)
    )
    short = PromptBatch(*(part[[0, 2]] for part in batch)).trimmed()
    assert (short.prompt.shape, short.answer.shape) == ((2, 4), (2, 2))
    assert (short.prompt_mask == 1).all()
    assert wording.tokenizer.decode(short.prompt[1]) == "2.0:"
    assert wording.tokenizer.decode(short.answer[1]) == "<end><end>"
    prompts = PromptBatch(
        batch.prompt, batch.prompt_mask, batch.answer[:, :0], batch.answer_mask[:, :0], batch.difficulty
    )
    assert prompts.trimmed().answer.shape == (3, 0)


def test_chat_models_get_a_message():
    """A tokenizer of ``transformers`` with its own wording of messages; its end ends questions."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<s>", "</s>", "<user>", "<assistant>", "[UNK]", "ask", "0", ".", "5", "-", "1", "what"]
    core = Tokenizer(models.WordLevel({word: code for code, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Punctuation(),
        ]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>",
        additional_special_tokens=["<user>", "<assistant>"],
    )  # fmt: skip
    tokenizer.chat_template = (
        "<s>{% for one in messages %}<user> {{ one['content'] }}{% endfor %}"
        "{% if add_generation_prompt %} <assistant>{% endif %}"
    )
    wording = PromptFormat("ask {difficulty:.1f}", tokenizer, chat_template=True)
    tokens, mask = wording.encode([0.5, -1.5])
    texts = [[words[code] for code in row[keep > 0]] for row, keep in zip(tokens, mask, strict=True)]
    assert texts[0] == ["<s>", "<user>", "ask", "0", ".", "5", "<assistant>"]
    assert texts[1] == ["<s>", "<user>", "ask", "-", "1", ".", "5", "<assistant>"]
    assert [words[code] for code in wording.encode_answers(["what 1"])[0][0]] == ["what", "1", "</s>"]
    assert wording.pad_token_id == words.index("</s>")
    assert wording.agrees_with(PromptFormat("ask {difficulty:.1f}", tokenizer, chat_template=True))
    assert not wording.agrees_with(PromptFormat("ask {difficulty:.1f}", tokenizer))
    with pytest.raises(ValueError, match="chat_template=True needs"):
        PromptFormat("ask {difficulty:.1f}", {"characters": "ask 0123456789."}, chat_template=True)


def test_files(tmp_path):
    path = tmp_path / "questions.jsonl"
    lines = [{"text": "ab", "difficulty": 0.5}, {"text": "ba", "difficulty": -1}] * 6
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    data = DifficultyPromptDataModule(path=str(path), batch_size=4)
    assert next(iter(data.train_dataloader())).answer.shape[0] == 4
    path.write_text('{"text": "ab"}', encoding="utf-8")
    with pytest.raises(ValueError, match="difficulty"):
        DifficultyPromptDataModule(path=str(path)).setup("fit")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"texts": ["a", "b"], "difficulties": [0.0]}, "difficulties"),
        ({"texts": ["a"] * 9, "difficulties": [np.nan] * 9}, "finite"),
        ({"texts": ["a"] * 9, "difficulties": [0.0] * 9, "template": "no field"}, "difficulty"),
        ({"n_prompts": 0}, "n_prompts"),
    ],
)
def test_bad_prompts(settings, words):
    with pytest.raises(ValueError, match=words):
        DifficultyPromptDataModule(**settings).setup("fit")
