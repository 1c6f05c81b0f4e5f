"""Answers of classifiers to digits: what is packed is what is made, and nobody saw what it was asked."""

import numpy as np
import pytest

from conformance.cases import no_global_generator
from seedbed.datasets import load_classifier_responses, make_classifier_responses
from seedbed.datasets.classifier_responses import FAMILIES, digit_features


@pytest.fixture(scope="module")
def loaded():
    return load_classifier_responses()


def test_matrix_is_as_described(loaded):
    assert loaded.data.shape == (148, 1797)
    assert set(np.unique(loaded.data)) == {0.0, 1.0}
    assert loaded.data.mean() == pytest.approx(0.7477, abs=1e-4)
    share = loaded.data.mean(axis=1)
    np.testing.assert_allclose(np.quantile(share, [0, 0.5, 1]), [0.1157, 0.8314, 0.985], atol=1e-4)
    assert set(loaded.data.mean(axis=0)).isdisjoint({0.0, 1.0})
    assert list(loaded.family[:12]) == [*FAMILIES, "logistic"]
    assert loaded.n_train.min() >= 20
    assert loaded.n_train.max() <= 1400
    # Log-uniform: half of the sizes below the geometric mean of the ends.
    assert np.median(loaded.n_train) == pytest.approx(np.sqrt(20 * 1400), rel=0.35)


def test_more_training_images_make_abler_classifiers(loaded):
    rank = np.corrcoef(np.log(loaded.n_train), loaded.data.mean(axis=1))[0, 1]
    assert rank > 0.5


def test_packed_matrix_is_what_the_generator_makes(loaded):
    with no_global_generator():
        made = make_classifier_responses(11, random_state=0)
    # The seed of each classifier is its own, so that few of them are the first of many.
    np.testing.assert_array_equal(made.family, loaded.family[:11])
    np.testing.assert_array_equal(made.n_train, loaded.n_train[:11])
    # Solvers and trees may break ties in another way in another version of scikit-learn.
    assert (made.data == loaded.data[:11]).mean() > 0.98


def test_seeds_decide():
    same, again, other = (make_classifier_responses(3, random_state=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(same.data, again.data)
    assert (same.data != other.data).any()
    legacy = make_classifier_responses(3, random_state=np.random.RandomState(1))
    np.testing.assert_array_equal(
        legacy.data, make_classifier_responses(3, random_state=np.random.RandomState(1)).data
    )


def test_features_by_hand(loaded):
    pixels, label, k = loaded.pixels, loaded.label, 41
    features = dict(zip(loaded.feature_names, loaded.item_features[k], strict=True))
    centers = np.array([pixels[label == c].mean(axis=0) for c in range(10)])
    distance = np.linalg.norm(pixels[k] - centers, axis=1)
    own = distance[label[k]]
    others = np.sort(np.delete(distance, label[k]))
    assert features["to_own"] == pytest.approx(own)
    assert features["to_other_1"] == pytest.approx(others[0])
    assert features["to_other_3"] == pytest.approx(others[2])
    assert features["own_to_other"] == pytest.approx(own / others[0])
    assert [features[f"is_{c}"] for c in range(10)] == [float(c == label[k]) for c in range(10)]
    apart = np.linalg.norm(pixels - pixels[k], axis=1)
    apart[k] = np.inf
    nearest = np.argsort(apart)
    assert features["agreement_5"] == pytest.approx((label[nearest[:5]] == label[k]).mean())
    assert features["agreement_15"] == pytest.approx((label[nearest[:15]] == label[k]).mean())
    # The item itself is not among its neighbours: a lone image of a class has no agreement.
    alone = digit_features(pixels[:40], np.where(np.arange(40) == 3, 9, np.arange(40) % 4))[0]
    assert alone[3, -1] == 0


def test_bad_arguments():
    with pytest.raises(ValueError, match="n_classifiers must be in"):
        make_classifier_responses(0)
    with pytest.raises(TypeError, match="n_classifiers must be an integer"):
        make_classifier_responses(2.5)
