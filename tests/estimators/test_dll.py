"""DLL estimators: learned attributes, reproducibility, every rule, and what they refuse."""

import pickle

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from seedbed.estimators import AlignmentDisplay, DLLCNNClassifier, DLLMLPClassifier, DLLMLPRegressor
from seedbed.lightning_modules.dll.rules import RULES

SMALL = {
    "hidden_layer_sizes": [8],
    "max_iter": 12,
    "batch_size": 32,
    "learning_rate_init": 2e-2,
    "accelerator": "cpu",
    "random_state": 0,
}
RULE_OPTIONS = {
    "pc": {"n_steps": 10},
    "pc_fa": {"n_steps": 10},
    "ep": {"free_steps": 8, "nudged_steps": 4},
    "softhebb": {"temperature": 0.5},
}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    X = (X - X.mean()) / X.std()
    return train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def quick(cls=DLLMLPClassifier, **changes):
    return cls(**{**SMALL, **changes})


@pytest.mark.parametrize("bias", [False, True])
def test_learned_attributes_explain_the_predictions(wine, bias):
    X, y = wine
    model = quick(hidden_layer_sizes=(7, 5), bias=bias).fit(X, y)
    assert [w.shape for w in model.coefs_] == [(13, 7), (7, 5), (5, 3)]
    assert [b.shape for b in model.intercepts_] == [(7,), (5,), (3,)]
    assert [w.shape for w in model.feedback_coefs_] == [(7, 5), (5, 3)]
    assert any(b.any() for b in model.intercepts_) == bias
    h = X
    for place, (w, b) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        h = h @ w + b
        h = np.tanh(h) if place < 2 else h
    odds = np.exp(h)
    np.testing.assert_allclose(model.predict_proba(X), odds / odds.sum(1, keepdims=True), atol=1e-5)
    assert len(model.loss_curve_) == model.n_iter_ == 12
    assert model.loss_curve_[-1] < model.loss_curve_[0]


def test_the_alignment_curve_ends_at_the_final_weights(wine):
    model = quick(hidden_layer_sizes=(7, 5)).fit(*wine)
    assert model.alignment_curve_.shape == (12, 2)
    for found, w, theta in zip(
        model.alignment_curve_[-1], model.coefs_[1:], model.feedback_coefs_, strict=True
    ):
        cosine = (w * theta).sum() / np.linalg.norm(w) / np.linalg.norm(theta)
        assert found == pytest.approx(cosine, abs=1e-6)


def test_alignment_emerges_with_learned_feedback(digits):
    X, _, y, _ = digits
    model = DLLMLPClassifier(max_iter=15, random_state=0, accelerator="cpu").fit(X, y)
    first, last = model.alignment_curve_[0], model.alignment_curve_[-1]
    assert (last > first + 0.1).all()
    assert last[1] > 0.4


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_learns_wine(wine, rule):
    X, y = wine
    model = quick(hidden_layer_sizes=(16, 8), learning_rule=rule, rule_options=RULE_OPTIONS.get(rule))
    assert model.fit(X, y).score(X, y) > 0.9
    assert np.isfinite(model.predict_proba(X)).all()
    assert bool(model.alignment_curve_.size) == bool(model.feedback_coefs_)


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"ff"}))
def test_every_rule_but_forward_forward_regresses(rule):
    X, y = load_diabetes(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    settings = {"learning_rule": rule, "rule_options": RULE_OPTIONS.get(rule)}
    model = quick(DLLMLPRegressor, hidden_layer_sizes=[16], **settings)
    assert model.fit(X, y).score(X, y) > 0.4


def test_forward_forward_does_not_regress():
    X, y = load_diabetes(return_X_y=True)
    with pytest.raises(ValueError, match="contrasts class labels"):
        quick(DLLMLPRegressor, learning_rule="ff").fit(X, y)


def test_two_halves_of_partial_fit_are_one_pass(wine):
    X, y = wine
    whole, halves = quick(), quick()
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    whole.partial_fit(X[:128], y[:128], classes=[0, 1, 2])
    halves.partial_fit(X[:64], y[:64], classes=[0, 1, 2]).partial_fit(X[64:128], y[64:128])
    for a, b in zip(
        whole.coefs_ + whole.feedback_coefs_, halves.coefs_ + halves.feedback_coefs_, strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_partial_fit_refuses_unknown_labels(wine):
    X, y = wine
    model = quick().partial_fit(X[:50], y[:50], classes=[0, 1])
    with pytest.raises(ValueError, match="not among the classes"):
        model.partial_fit(X, y)


@pytest.mark.parametrize("cls", [DLLMLPClassifier, DLLCNNClassifier])
def test_sample_weight_scales_a_rows_share(wine, cls):
    """One full-batch step: weight 2 is the row twice; weight 0 is no row."""
    X, y = wine
    weight = np.tile([1, 2, 0], 60)[: len(X)]
    settings = {
        "max_iter": 3,
        "batch_size": 1000,
        "solver": "sgd",
        "feedback_rule": "anti_hebbian",
        "learning_rate_init": 1e-3,
    }
    weighted = quick(cls, **settings).fit(X, y, sample_weight=weight)
    repeated = quick(cls, **settings).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    for a, b in zip(weighted.coefs_, repeated.coefs_, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_pickle_and_clone(wine):
    X, y = wine
    model = quick().fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    fresh = clone(model)
    assert not hasattr(fresh, "module_")
    np.testing.assert_array_equal(fresh.fit(X, y).predict_proba(X), model.predict_proba(X))


def test_global_generators_are_left_alone(wine):
    torch.manual_seed(3)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    quick(learning_rule="dtp", max_iter=2).fit(*wine)
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


def test_labels_of_any_kind(wine):
    X, y = wine
    names = np.array(["barolo", "grignolino", "barbera"])
    model = quick().fit(X, names[y])
    assert list(model.classes_) == sorted(names)
    assert model.score(X, names[y]) > 0.95


def test_float32_in_float32_out(wine):
    X, y = wine
    model = quick().fit(X.astype(np.float32), y)
    assert model.predict_proba(X.astype(np.float32)).dtype == np.float32
    assert quick(DLLMLPRegressor).fit(X, y).predict(X.astype(np.float32)).dtype == np.float32


def test_pipeline_and_grid_search(wine):
    X, y = wine
    pipeline = make_pipeline(StandardScaler(), quick(max_iter=4))
    grid = {
        "dllmlpclassifier__learning_rule": ["dll", "fa"],
        "dllmlpclassifier__hidden_layer_sizes": [(8,), (16,)],
    }
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_score_ > 0.8
    assert len(search.cv_results_["params"]) == 4


def test_early_stopping_keeps_the_best_weights(wine):
    X, y = wine
    model = quick(early_stopping=True, n_iter_no_change=3, max_iter=40, validation_fraction=0.2).fit(X, y)
    assert model.n_iter_ < 40
    assert model.best_validation_score_ == max(model.validation_scores_)


def test_images(digits):
    X, X_test, y, y_test = digits
    model = DLLCNNClassifier((1, 8, 8), max_iter=8, random_state=0, accelerator="cpu").fit(X, y)
    assert [w.shape for w in model.coefs_] == [(16, 1, 3, 3), (32, 16, 3, 3), (128, 64), (64, 10)]
    assert [w.shape for w in model.feedback_coefs_] == [(32, 16, 3, 3), (128, 64), (64, 10)]
    assert model.score(X_test, y_test) > 0.8
    square = DLLCNNClassifier(max_iter=1, random_state=0, accelerator="cpu").fit(X, y)
    assert square.image_shape_ == (1, 8, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_layer_sizes": [8, 0]}, "hidden_layer_sizes must hold integers of at least 1"),
        ({"hidden_layer_sizes": [2.5]}, "hidden_layer_sizes must hold integers of at least 1"),
        ({"hidden_layer_sizes": []}, "at least one entry"),
        ({"learning_rule": "magic"}, "The 'learning_rule' parameter"),
        ({"activation": "step"}, "The 'activation' parameter"),
        ({"learning_rate": "sometimes"}, "The 'learning_rate' parameter"),
        ({"label_smoothing": 1.0}, "The 'label_smoothing' parameter"),
        ({"sigma": 0.0}, "The 'sigma' parameter"),
        ({"clip_value": -1.0}, "The 'clip_value' parameter"),
        ({"solver": "sgd", "clip_value": None}, "grows exponentially"),
        ({"rule_options": {"nothing": 1}}, "rule_options must be among"),
    ],
)
def test_bad_parameters_are_named(wine, changes, message):
    with pytest.raises(ValueError, match=message):
        quick(**changes).fit(*wine)


def test_bad_images_are_named(wine):
    X, y = wine
    with pytest.raises(ValueError, match=r"image_shape must be .* \(13\); got \(1, 2, 6\)"):
        quick(DLLCNNClassifier, image_shape=(1, 2, 6)).fit(X, y)
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        quick(DLLCNNClassifier, kernel_size=2).fit(X, y)


def test_the_display_draws_what_was_learned(wine):
    model = quick(hidden_layer_sizes=(7, 5)).fit(*wine)
    display = AlignmentDisplay.from_estimator(model)
    assert len(display.lines_) == 2
    np.testing.assert_allclose(display.lines_[1].get_ydata(), model.alignment_curve_[:, 1])
    np.testing.assert_allclose(display.loss_line_.get_ydata(), model.loss_curve_)
    assert display.ax_.get_ylabel() == "cos(W, Θ)"
    assert display.figure_ is display.ax_.figure
    _, ax = plt.subplots()
    assert AlignmentDisplay.from_estimator(model, ax=ax, name="wine").ax_ is ax
    assert ax.get_title() == "wine"
    plt.close("all")


def test_the_display_says_what_it_cannot_draw(wine):
    with pytest.raises(NotFittedError):
        AlignmentDisplay.from_estimator(quick())
    with pytest.raises(ValueError, match="'bp' has no feedback weights"):
        AlignmentDisplay.from_estimator(quick(learning_rule="bp").fit(*wine))
    with pytest.raises(TypeError, match="alignment_curve_"):
        AlignmentDisplay.from_estimator(StandardScaler().fit(wine[0]))
