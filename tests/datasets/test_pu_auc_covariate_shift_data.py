"""Positives, unlabeled rows and target rows: what is drawn, and how it is handed out."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from conformance.cases import no_global_generator
from references.pu_auc_covariate_shift import gaussian_grid
from seedbed.datasets import (
    PUBatches,
    PUDataModule,
    WeightedPUBatch,
    load_digits,
    make_pu_covariate_shift,
    make_pu_digits,
    make_pu_domain_split,
)

# --- synthetic ----------------------------------------------------------------------------------------------


def test_populations_are_as_described():
    with no_global_generator():
        data = make_pu_covariate_shift(20_000, 20_000, 20_000, n_test=40_000, random_state=0)
    x1, x2, p_tr, p_te, eta = gaussian_grid()
    for rows, mean in ((data.X_unlabeled, -0.7), (data.X_target, 0.7), (data.X_test, 0.7)):
        np.testing.assert_allclose(rows.mean(axis=0), [mean, 0], atol=0.03)
        np.testing.assert_allclose(np.cov(rows.T), np.eye(2), atol=0.04)
    positives = p_tr * eta / (p_tr @ eta)
    expected = [positives @ x1, positives @ x2, positives @ (x1 * x2)]
    found = data.X_positive
    np.testing.assert_allclose([*found.mean(axis=0), (found[:, 0] * found[:, 1]).mean()], expected, atol=0.04)
    assert data.class_prior == pytest.approx(p_te @ eta, abs=1e-6)
    assert data.y_test.mean() == pytest.approx(data.class_prior, abs=0.01)
    x = data.X_test
    np.testing.assert_allclose(data.posterior_test, expit(-2.2 + 3 * x[:, 1] * np.tanh(-2 * x[:, 0])))
    assert data.weight_unlabeled.mean() == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(data.weight_positive, np.exp(1.4 * data.X_positive[:, 0]))


def test_stacked_rows():
    data = make_pu_covariate_shift(5, 7, 6, n_test=3, random_state=0)
    np.testing.assert_array_equal(data.X, np.vstack([data.X_positive, data.X_unlabeled, data.X_target]))
    assert data.y.tolist() == [1] * 5 + [0] * 7 + [-1] * 6
    assert data.sample_domain.tolist() == [1] * 12 + [-1] * 6
    again = make_pu_covariate_shift(5, 7, 6, n_test=3, random_state=0)
    np.testing.assert_array_equal(again.X, data.X)
    assert make_pu_covariate_shift(5, 7, 6, shift=0.0).weight_positive.tolist() == [1.0] * 5


@pytest.mark.parametrize(
    "changes", [{"n_positive": 0}, {"n_target": -1}, {"n_test": 1.5}, {"shift": -1.0}, {"shift": np.nan}]
)
def test_bad_sizes(changes):
    with pytest.raises((ValueError, TypeError), match=next(iter(changes))):
        make_pu_covariate_shift(**changes)


# --- from classes -------------------------------------------------------------------------------------------


def test_digits_are_mixed_as_asked():
    digit = load_digits().target
    data = make_pu_digits(random_state=0)
    rows = data.rows
    everything = np.concatenate(list(rows.values()))
    assert len(set(everything)) == len(everything) == 60 + 400 + 200 + 300
    counts = {name: np.bincount(digit[part], minlength=10) for name, part in rows.items()}
    assert counts["positive"].tolist() == [0, 18, 0, 18, 0, 18, 0, 3, 0, 3]
    assert counts["unlabeled"][1::2].sum() == 60
    assert counts["unlabeled"][[1, 3, 5]].sum() == 54
    assert counts["unlabeled"][[0, 2, 4]].sum() == 306
    assert counts["target"][1::2].sum() == 30
    assert counts["target"][[7, 9]].sum() == 27
    assert counts["test"][1::2].sum() == 150
    np.testing.assert_array_equal(data.y_test, digit[rows["test"]] % 2)
    np.testing.assert_array_equal(data.X_test, load_digits().data[rows["test"]] / 16)
    assert not np.array_equal(make_pu_digits(random_state=1).X, data.X)


def blocks():
    """200 rows of each of four classes."""
    labels = np.repeat(["a", "b", "c", "d"], 200)
    return np.arange(800.0)[:, None], labels


def split(**changes):
    X, labels = blocks()
    given = {
        "positive_classes": {"a", "b"},
        "source_mix": {"a": 3, "b": 1, "c": 1},
        "target_mix": {"b": 1, "c": 1, "d": 1},
        "n_positive": 10,
        "n_unlabeled": 40,
        "n_target": 30,
        "n_test": 20,
        "class_prior": 0.25,
        "random_state": 0,
    }
    return make_pu_domain_split(X, labels, **{**given, **changes})


def test_shares_are_rounded_by_largest_remainders():
    data = split()
    labels = blocks()[1]
    assert np.unique(labels[data.rows["positive"]], return_counts=True)[1].sum() == 10
    assert sorted(np.unique(labels[data.rows["positive"]], return_counts=True)[1]) == [2, 8]
    target = dict(zip(*np.unique(labels[data.rows["target"]], return_counts=True)))
    assert target["b"] == 8
    assert {target["c"], target["d"]} == {11}
    assert split(class_prior_target=0.5).class_prior_target == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_mix": {"z": 1, "a": 1, "c": 1}}, r"source_mix names \['z'\], which labels do not hold"),
        ({"source_mix": {"a": 1}}, "source_mix must give a share to positive and to negative classes"),
        ({"target_mix": {"a": 1, "c": 0}}, "target_mix must give a share"),
        ({"target_mix": {"a": 1, "c": -1}}, "target_mix"),
        ({"n_positive": 500}, "has 200 rows, too few"),
        ({"class_prior": 0.0}, "class_prior must be in"),
        ({"class_prior_target": 1.0}, "class_prior_target must be in"),
        ({"n_unlabeled": 0}, "n_unlabeled"),
    ],
)
def test_bad_splits(changes, message):
    with pytest.raises(ValueError, match=message):
        split(**changes)


def test_bad_arrays():
    with pytest.raises(ValueError, match="must have shapes"):
        make_pu_domain_split(
            np.zeros((4, 2)), np.zeros(3), positive_classes={0}, source_mix={}, target_mix={}
        )
    with pytest.raises(ValueError, match="share must be in"):
        make_pu_digits(share=1.0)


# --- batches ------------------------------------------------------------------------------------------------


def loader(seed=0, batch_size=30, weights=None):
    parts = (torch.arange(7.0)[:, None], torch.arange(100.0)[:, None], torch.arange(40.0)[:, None])
    return PUBatches(*parts, batch_size=batch_size, seed=seed, weights=weights)


def test_every_row_comes_every_epoch_and_every_step_has_all_samples():
    batches = list(loader())
    assert len(batches) == len(loader()) == 5
    assert {tuple(len(part) for part in batch) for batch in batches} == {(2, 20, 8)}
    for index, n in enumerate((7, 100, 40)):
        assert set(torch.cat([batch[index] for batch in batches]).flatten().tolist()) == set(range(n))
    shuffled = loader()
    first = [batch.unlabeled for batch in shuffled]
    shuffled.sampler.set_epoch(1)
    second = [batch.unlabeled for batch in shuffled]
    shuffled.set_epoch(0)
    again = [batch.unlabeled for batch in shuffled]
    assert not torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_in_order_every_row_comes_once():
    batches = list(loader(seed=None))
    for index, n in enumerate((7, 100, 40)):
        assert torch.cat([batch[index] for batch in batches]).flatten().tolist() == list(range(n))
    assert not hasattr(loader(seed=None), "sampler")


def test_processes_share_out_every_step():
    whole = list(loader(batch_size=40).share(0, 1))
    shares = [list(loader(batch_size=40).share(rank, 2)) for rank in range(2)]
    for batch, *parts in zip(whole, *shares, strict=True):
        for index in range(3):
            joined = torch.cat([part[index] for part in parts]).flatten().tolist()
            assert set(joined) == set(batch[index].flatten().tolist())
            assert len(parts[0][index]) == len(parts[1][index])


def test_resume_within_an_epoch():
    first = loader()
    first.set_epoch(3)
    taken = iter(first)
    expected = [batch.positive for batch in taken]
    taken = iter(first)
    next(taken), next(taken)
    state = first.state_dict()
    assert state == {"epoch": 3, "taken": 2}
    resumed = loader()
    resumed.load_state_dict(state)
    resumed.set_epoch(3)
    rest = [batch.positive for batch in resumed]
    assert all(torch.equal(a, b) for a, b in zip(rest, expected[2:], strict=True))
    assert len(list(resumed)) == 5


def test_weights_go_with_their_rows():
    weights = (torch.arange(7.0), torch.arange(100.0), torch.arange(40.0))
    for batch in loader(weights=weights):
        assert isinstance(batch, WeightedPUBatch)
        for rows, weight in zip(batch[:3], batch[3:]):
            assert torch.equal(rows[:, 0], weight)


def test_bad_batches():
    rows = torch.zeros(3, 1)
    with pytest.raises(ValueError, match="positive must have at least one row"):
        PUBatches(rows[:0], rows, rows, batch_size=2)
    with pytest.raises(ValueError, match="weights must have one entry per row"):
        PUBatches(rows, rows, rows, batch_size=2, weights=(torch.ones(2), torch.ones(3), torch.ones(3)))
    with pytest.raises(ValueError, match="batch_size"):
        PUBatches(rows, rows, rows, batch_size=0)
    assert len(next(iter(PUBatches(rows, rows, rows[:0], batch_size=9, seed=0))).target) == 0


# --- the data module ----------------------------------------------------------------------------------------


def test_parts_are_split_and_scaled():
    data = PUDataModule("digits", batch_size=10_000)
    (train,), (held,) = data.train_dataloader(), data.val_dataloader()
    assert [len(part) for part in train] == [48, 320, 160]
    assert [len(part) for part in held] == [12, 80, 40]
    both = torch.cat([train.unlabeled, train.target])
    np.testing.assert_allclose(both.mean(dim=0), 0, atol=1e-5)
    assert both.std(dim=0).max() < 1.01
    plain = PUDataModule("digits", batch_size=10_000, standardize=False, val_size=0.0)
    assert plain.val_dataloader() == []
    (train,) = plain.train_dataloader()
    source = make_pu_digits(random_state=0)
    found = {tuple(row) for row in train.positive.numpy().round(4).tolist()}
    assert found == {tuple(row) for row in source.X_positive.astype(np.float32).round(4).tolist()}
    x, y = next(iter(plain.test_dataloader()))
    np.testing.assert_allclose(x, source.X_test, rtol=1e-6)
    np.testing.assert_array_equal(y, source.y_test)


def test_without_labels_there_is_no_test():
    source = make_pu_covariate_shift(20, 50, 50, random_state=0)
    arrays = {name: source[name] for name in ("X_positive", "X_unlabeled", "X_target")}
    assert PUDataModule(arrays).test_dataloader() == []
    assert len(PUDataModule("gaussians").test_dataloader()) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": "letters"}, ValueError, "data must be one of"),
        ({"data": 3}, TypeError, "data must be 'digits', 'gaussians' or a mapping"),
        ({"data": {"X_positive": 1}}, ValueError, "'X_unlabeled', 'X_target'"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"val_size": 1.0}, ValueError, "val_size"),
        ({"random_state": -1}, ValueError, "random_state"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        PUDataModule(**arguments)


def test_bad_arrays_of_the_module():
    source = make_pu_covariate_shift(20, 50, 50, n_test=10, random_state=0)
    for name, value, message in (
        ("X_positive", np.full((20, 2), np.nan), "X_positive must be finite"),
        ("X_target", np.zeros(5), "X_target must be numeric of shape"),
        ("X_positive", np.zeros((2, 2)), "X_positive has 2 rows, too few for val_size"),
        ("y_test", np.arange(10), "y_test must hold 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            PUDataModule({**source, name: value}).setup()
    for weights, message in (
        ((np.ones(20), np.ones(50)), "weights must be a tuple of three"),
        ((np.ones(19), np.ones(50), np.ones(50)), "weights of X_positive must be 20 finite numbers"),
        ((np.ones(20), -np.ones(50), np.ones(50)), "weights of X_unlabeled"),
    ):
        with pytest.raises(ValueError, match=message):
            PUDataModule(source, weights=weights).setup()
