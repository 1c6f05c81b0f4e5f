"""Checks of scikit-learn: its generator has none for estimators of one column, but these take such data."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.utils import estimator_checks

from seedbed.estimators import ChangePointBandit

CHECKS = (
    "check_complex_data", "check_dataframe_column_names_consistency",
    "check_do_not_raise_errors_in_init_or_set_params", "check_estimator_cloneable", "check_estimator_repr",
    "check_estimator_sparse_matrix", "check_estimator_sparse_tag", "check_estimator_tags_renamed",
    "check_estimators_dtypes", "check_estimators_empty_data_messages", "check_estimators_fit_returns_self",
    "check_estimators_nan_inf", "check_estimators_overwrite_params", "check_estimators_pickle",
    "check_estimators_unfitted", "check_fit_check_is_fitted", "check_fit_idempotent",
    "check_fit_score_takes_y", "check_get_params_invariance", "check_inplace_ensure_writeable",
    "check_mixin_order", "check_n_features_in_after_fitting", "check_no_attributes_set_in_init",
    "check_nonsquare_error", "check_param_validation", "check_parameters_default_constructible",
    "check_pipeline_consistency", "check_positive_only_tag_during_fit", "check_readonly_memmap_input",
    "check_requires_y_none", "check_set_params", "check_supervised_y_2d", "check_supervised_y_no_nan",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
@pytest.mark.parametrize("name", CHECKS)
def test_scikit_learn_checks(name):
    getattr(estimator_checks, name)("ChangePointBandit", ChangePointBandit())


def test_wrong_widths():
    rng = np.random.default_rng(0)
    wide, y = np.arange(12.0).reshape(6, 2), rng.normal(size=6)
    with pytest.raises(ValueError, match="one column"):
        ChangePointBandit().fit(wide, y)
    model = ChangePointBandit().fit(wide[:, :1], y)
    for call in (lambda: model.partial_fit(wide, y), lambda: model.predict(wide)):
        with pytest.raises(ValueError, match="2 features"):
            call()
    assert model.n_features_in_ == 1


def test_no_engine_of_others_is_loaded():
    """A NumPy estimator: neither torch nor an extra comes with it."""
    code = (
        "import sys; from seedbed.estimators import ChangePointBandit, simulate_policy, segment_means\n"
        "ChangePointBandit().start([0.0, 1.0, 2.0]).ask()\n"
        "wanted = {'torch', 'lightning', 'matplotlib', 'statsmodels', 'ruptures'}\n"
        "print(sorted(wanted & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
