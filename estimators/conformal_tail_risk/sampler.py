"""Draw answers of a black-box model until one is acceptable."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from seedbed.checks import check_number


@dataclass(frozen=True)
class Answer:
    """What came of a prompt.

    Attributes
    ----------
    text : str or None
        The accepted answer, or the fallback.
    score : float
        Its machine score; NaN for the fallback.
    accepted : bool
        Whether an answer was acceptable; otherwise the system abstains.
    n_samples : int
        Answers drawn.
    scores : tuple of float
        Scores of all of them, in order.
    """

    text: str | None
    score: float
    accepted: bool
    n_samples: int
    scores: tuple[float, ...]


class RejectionSampler:
    """Draws answers until one has a score up to the controller's threshold, or gives up.

    Parameters
    ----------
    controller : ConformalTailRiskController
        Fitted.
    sampler : callable
        ``sampler(prompt) -> str`` draws an answer; with ``batch_size`` above 1, ``sampler(prompt, n) -> list
        of str`` draws n. For :meth:`agenerate` it may be a coroutine function.
    scorer : callable
        ``scorer(prompt, text) -> float``; with ``batch_size`` above 1, ``scorer(prompt, texts)`` gives one
        number each. It must be the one that the controller was calibrated on.
    max_samples : int, optional
        Answers at most: as many as in calibration, which is the default; fewer are covered as well, more are
        not.
    batch_size : int
        Answers drawn at a time. They are judged in order, as if drawn one by one.
    fallback : str, optional
        What to say when none is acceptable.

    Raises
    ------
    NotFittedError
        If the controller is not fitted.
    ValueError
        If more answers are to be drawn than the guarantee covers.

    Examples
    --------
    >>> from seedbed.datasets import make_tail_alignment
    >>> from seedbed.estimators import ConformalTailRiskController, RejectionSampler
    >>> data = make_tail_alignment(1000, random_state=0)
    >>> model = ConformalTailRiskController(alpha=0.25).fit(data.machine_scores, data.human_losses)
    >>> drafts = iter(["rude", "polite"])
    >>> scores = {"rude": 0.9, "polite": 0.1}
    >>> sampler = RejectionSampler(model, lambda _: next(drafts), lambda _, text: scores[text])
    >>> sampler.generate("hello")
    Answer(text='polite', score=0.1, accepted=True, n_samples=2, scores=(0.9, 0.1))
    """

    def __init__(
        self,
        controller: Any,
        sampler: Callable[..., Any],
        scorer: Callable[..., Any],
        *,
        max_samples: int | None = None,
        batch_size: int = 1,
        fallback: str | None = None,
    ) -> None:
        check_is_fitted(controller, "lambda_")
        for name, function in (("sampler", sampler), ("scorer", scorer)):
            if not callable(function):
                raise TypeError(f"{name} must be callable, got {type(function).__name__}")
        covered = controller.n_features_in_ if controller.max_samples is None else controller.max_samples
        most = covered if max_samples is None else max_samples
        check_number("max_samples", most, low=1, integer=True)
        if most > covered:
            raise ValueError(f"max_samples must be at most {covered}, as in calibration, got {most}")
        check_number("batch_size", batch_size, low=1, integer=True)
        self.controller = controller
        self.sampler = sampler
        self.scorer = scorer
        self.max_samples = int(most)
        self.batch_size = int(batch_size)
        self.fallback = fallback

    def generate(self, prompt: Any) -> Answer:
        """Answer a prompt.

        Parameters
        ----------
        prompt : object
            Passed to sampler and scorer.

        Returns
        -------
        Answer
            The first acceptable answer, or the fallback.

        Raises
        ------
        TypeError
            If the sampler returns no text, or the scorer no number for each.
        ValueError
            If a score is NaN.
        """
        scores: list[float] = []
        while len(scores) < self.max_samples:
            texts = self._texts(self.sampler(*self._request(prompt, len(scores))), len(scores))
            found = self._scores(self.scorer(prompt, texts if self.batch_size > 1 else texts[0]), len(texts))
            answer = self._judge(texts, found, scores)
            if answer is not None:
                return answer
        return self._abstain(scores)

    async def agenerate(self, prompt: Any) -> Answer:
        """Answer a prompt with a sampler or scorer that may be coroutine functions.

        Parameters
        ----------
        prompt : object
            Passed to sampler and scorer.

        Returns
        -------
        Answer
            As :meth:`generate` gives it.

        Raises
        ------
        TypeError, ValueError
            As :meth:`generate`.
        """
        scores: list[float] = []
        while len(scores) < self.max_samples:
            drawn = await _awaited(self.sampler(*self._request(prompt, len(scores))))
            texts = self._texts(drawn, len(scores))
            judged = await _awaited(self.scorer(prompt, texts if self.batch_size > 1 else texts[0]))
            answer = self._judge(texts, self._scores(judged, len(texts)), scores)
            if answer is not None:
                return answer
        return self._abstain(scores)

    def _request(self, prompt: Any, drawn: int) -> tuple[Any, ...]:
        return (prompt,) if self.batch_size == 1 else (prompt, self._wanted(drawn))

    def _wanted(self, drawn: int) -> int:
        return min(self.batch_size, self.max_samples - drawn)

    def _texts(self, drawn: Any, before: int) -> list[str]:
        texts = [drawn] if self.batch_size == 1 else drawn
        wanted = self._wanted(before)
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            kind = type(drawn).__name__
            raise TypeError(
                f"sampler must return {'a str' if self.batch_size == 1 else 'a list of str'}, got {kind}"
            )
        if len(texts) != wanted:
            raise TypeError(f"sampler must return {wanted} answers, got {len(texts)}")
        return list(texts)

    def _scores(self, judged: Any, wanted: int) -> list[float]:
        try:
            values = np.atleast_1d(np.asarray(judged, dtype=float))
        except (TypeError, ValueError) as error:
            raise TypeError(f"scorer must return numbers, got {type(judged).__name__}") from error
        if values.shape != (wanted,):
            raise TypeError(f"scorer must return {wanted} number(s), got shape {values.shape}")
        if np.isnan(values).any():
            raise ValueError("scorer must return numbers, got NaN")
        return [float(value) for value in values]

    def _judge(self, texts: list[str], found: list[float], scores: list[float]) -> Answer | None:
        for text, score in zip(texts, found, strict=True):
            scores.append(score)
            if score <= self.controller.lambda_:
                return Answer(text, score, True, len(scores), tuple(scores))
        return None

    def _abstain(self, scores: list[float]) -> Answer:
        return Answer(self.fallback, float("nan"), False, len(scores), tuple(scores))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
