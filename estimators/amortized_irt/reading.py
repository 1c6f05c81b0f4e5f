"""What estimators of answers share: how a table of answers is read, and what scikit-learn is told of it."""

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from seedbed.estimators.amortized_irt.responses import Responses, read_responses


class ReadsAnswers:
    """Estimators whose X is a table of answers, takers by items; they have a parameter ``missing_values``."""

    missing_values: float

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.required = False
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _read(self, X: Any, mask: Any = None, *, reset: bool = False) -> Responses:
        """Check a table of answers."""
        marker = self.missing_values
        X = validate_data(
            self,
            X,
            reset=reset,
            dtype=[np.float64, np.float32],
            accept_sparse="csr",
            ensure_all_finite="allow-nan" if np.isnan(marker) else True,
            ensure_min_samples=2 if reset else 1,
            ensure_min_features=2 if reset else 1,
        )
        if reset:
            self._dtype = X.dtype
        return read_responses(X, mask=mask, missing_values=marker)
