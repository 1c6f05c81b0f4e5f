"""The one list of methods.

The command line, the conformance tests, the README table and the docs all read it; nothing repeats it.
Adding a method here puts it under every conformance test.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

Kind = Literal["estimator", "optimizer", "module", "layer", "display", "callback", "function"]


@dataclass(frozen=True)
class Public:
    """A public name of a method.

    Attributes
    ----------
    name : str
        Name inside the method's folder or, with a dot, a full path such as ``seedbed.estimators.X``.
    kind : str
        What it promises, and so which conformance tests it meets.
    small : mapping
        Keyword arguments of an instance small enough to be fitted in a second. Plain values only: they
        are written to YAML for LightningCLI. An optimizer's go to its ``build(params, **small)``.
    problem : {"table", "scores", "responses", "items"}
        For estimators: what they learn from. Rows with a target each; scores of candidates with a loss each;
        right and wrong answers of takers to items; or features of items with a row of answers each.
    data : str, optional
        For modules: the data module (full path) that feeds it in the conformance tests.
    data_small : mapping
        Keyword arguments of that data module.
    warns : tuple of str
        For estimators: regular expressions, without colons, of the warnings that are right where only X and
        y are given, as in the conformance tests.
    """

    name: str
    kind: Kind
    small: Mapping[str, Any] = field(default_factory=dict)
    problem: Literal["table", "scores", "responses", "items"] = "table"
    data: str | None = None
    data_small: Mapping[str, Any] = field(default_factory=dict)
    warns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Method:
    """A paper and its implementation.

    Attributes
    ----------
    slug : str
        The method's name in every path.
    title : str
        Title of the paper.
    authors : str
        Authors of the paper.
    where : str
        Venue and pages.
    url : str
        Where to read it.
    summary : str
        What it gives a user, one line.
    folder : {"estimators", "optimizers", "lightning_modules"}
        The branch that holds it.
    public : tuple of Public
        Its public names.
    extras : tuple of str
        Extras of seedbed that its demo and data need.
    """

    slug: str
    title: str
    authors: str
    where: str
    url: str
    summary: str
    folder: Literal["estimators", "optimizers", "lightning_modules"]
    public: tuple[Public, ...]
    extras: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Import path of the method's module."""
        return f"seedbed.{self.folder}.{self.slug}"

    def path(self, public: Public) -> str:
        """Full import path of one of its public names.

        Parameters
        ----------
        public : Public
            One of ``self.public``.

        Returns
        -------
        str
            Such as ``seedbed.estimators.CoJERRegressor``.
        """
        return public.name if "." in public.name else f"seedbed.{self.folder}.{public.name}"

    def demo(self) -> Any:
        """Load the method's demo.

        Returns
        -------
        callable
            ``run(report) -> seedbed.demos.Demo``.
        """
        return import_module(f"{self.module}.demo").run


def load(path: str) -> Any:
    """Import a public name.

    Parameters
    ----------
    path : str
        Full path, such as ``seedbed.estimators.CoJERRegressor``.

    Returns
    -------
    object
        The class or function.
    """
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


METHODS: tuple[Method, ...] = (
    Method(
        slug="amortized_irt",
        title="Reliable and Efficient Amortized Model-based Evaluation",
        authors="Sang T. Truong, Yuheng Tu, Percy Liang, Bo Li, Sanmi Koyejo",
        where="ICML 2025, PMLR 267:60238-60265",
        url="https://arxiv.org/abs/2503.13335",
        summary="Abilities that compare across questions; difficulties from features; adaptive tests.",
        folder="estimators",
        public=(
            Public(
                "RaschModel",
                "estimator",
                small={"tol": 1e-12},
                problem="responses",
                warns=("EM did not converge",),
            ),
            Public(
                "TwoPLModel",
                "estimator",
                small={"tol": 1e-12},
                problem="responses",
                warns=("EM did not converge",),
            ),
            Public(
                "ThreePLModel",
                "estimator",
                small={"tol": 1e-12},
                problem="responses",
                warns=("EM did not converge",),
            ),
            Public("MultidimensionalIRT", "estimator", problem="responses"),
            Public("AmortizedIRT", "estimator", problem="responses", warns=("EM has not converged",)),
            Public("ItemDifficultyRegressor", "estimator", problem="items"),
            Public(
                "seedbed.lightning_modules.QuestionGeneratorModule",
                "module",
                small={
                    "model": {
                        "model_type": "gpt2",
                        "n_layer": 1,
                        "n_embd": 16,
                        "n_head": 2,
                        "n_positions": 48,
                        # Ranks draw dropout masks of their own.
                        "resid_pdrop": 0.0,
                        "embd_pdrop": 0.0,
                        "attn_pdrop": 0.0,
                    },
                    "max_new_tokens": 8,
                    "optimizer": "sgd",
                    "lr": 0.1,
                },
                data="seedbed.datasets.DifficultyPromptDataModule",
                data_small={"n_questions": 160, "batch_size": 32},
            ),
            Public("AdaptiveTest", "function"),
            Public("Items", "function"),
            Public("ItemFeatures", "function"),
            Public("SentenceEncoder", "function"),
            Public("AdaptiveTestDisplay", "display"),
            Public("ItemCharacteristicDisplay", "display"),
            Public("WrightMapDisplay", "display"),
            Public(
                "seedbed.lightning_modules.AmortizedIRTModule",
                "module",
                small={"n_takers": 1000, "n_items": 5, "model": "2pl", "lr": 0.05},
                data="seedbed.datasets.ResponseDataModule",
                data_small={"data": "lsat6", "batch_size": 250},
            ),
            *(
                Public(name, "function")
                for name in (
                    "average_prediction",
                    "average_score",
                    "ctt_correlation",
                    "differential_item_functioning",
                    "empirical_reliability",
                    "equate",
                    "estimate_ability",
                    "goodness_of_fit",
                    "held_out_auc",
                    "infit_outfit",
                    "information_criteria",
                    "item_information",
                    "marginal_reliability",
                    "most_informative_ability",
                    "random_subset_score",
                    "reliability_interval",
                    "responses_from_long",
                    "score_correlation",
                    "simulate_responses",
                    "subset_test",
                )
            ),
        ),
        extras=("data", "lm", "text"),
    ),
    Method(
        slug="change_point_bandit",
        title="Fixed-Confidence Multiple Change Point Identification under Bandit Feedback",
        authors="Joseph Lazzaro, Ciara Pike-Burke",
        where="ICML 2025, PMLR 267",
        url="https://arxiv.org/abs/2507.08994",
        summary="Finds the jumps of a noisy step function by few queries, with a bound on the error.",
        folder="estimators",
        public=(
            Public("ChangePointBandit", "estimator", small={"sigma": 1.0}),
            Public("ChangePointBanditDisplay", "display"),
            Public("simulate_policy", "function"),
            Public("characteristic_time", "function"),
            Public("optimal_allocation", "function"),
            Public("stopping_threshold", "function"),
            Public("segment_means", "function"),
            Public("noisy_binary_search", "function"),
            Public("sequential_halving", "function"),
            Public("seedbed.datasets.PiecewiseConstantBandit", "function"),
            Public("seedbed.datasets.make_piecewise_constant_bandit", "function"),
            Public("seedbed.datasets.load_nile_bandit", "function"),
        ),
        extras=("data",),
    ),
    Method(
        slug="cojer",
        title="False Coverage Proportion Control for Conformal Prediction",
        authors="Alexandre Blain, Bertrand Thirion, Pierre Neuvial",
        where="ICML 2025, PMLR 267:4471-4481",
        url="https://openreview.net/forum?id=H9vSxIhsuh",
        summary="Intervals whose share of misses in a batch is at most alpha with probability 1 - delta.",
        folder="estimators",
        public=(
            Public("CoJERRegressor", "estimator"),
            Public("QuantileBand", "function"),
            Public("CoJERDisplay", "display"),
            Public("from_mapie", "function"),
            Public("cojer_level", "function"),
            Public("cojer_thresholds", "function"),
            Public("cojer_confidence_level", "function"),
            Public("joint_error_rate", "function"),
            Public("fcp_exceedance_probability", "function"),
            Public("false_coverage_proportion", "function"),
            Public("dkw_fcp_level", "function"),
            Public("dkw_fcp_margin", "function"),
        ),
        extras=("data",),
    ),
    Method(
        slug="conformal_tail_risk",
        title="Conformal Tail Risk Control for Large Language Model Alignment",
        authors="Catherine Yu-Chi Chen, Jingyan Shen, Zhun Deng, Lihua Lei",
        where="ICML 2025, PMLR 267",
        url="https://arxiv.org/abs/2502.20285",
        summary="Thresholds on a machine's score that control the tail of human losses, by calibration.",
        folder="estimators",
        public=(
            Public("ConformalTailRiskController", "estimator", small={"alpha": 0.6}, problem="scores"),
            Public("RejectionSampler", "function"),
            Public("TailRiskDisplay", "display"),
            Public("tail_risk_p_value", "function"),
            Public("berk_jones_bound", "function"),
            Public("dkw_bound", "function"),
            *(
                Public(f"seedbed.estimators.distortion.{name}", "function")
                for name in (
                    "Mean",
                    "VaR",
                    "CVaR",
                    "IntervalVaR",
                    "PowerDistortion",
                    "ExponentialDistortion",
                    "WangDistortion",
                    "QuantileMixture",
                    "CustomDistortion",
                )
            ),
        ),
    ),
    Method(
        slug="dll",
        title="Dendritic Localized Learning: Toward Biologically Plausible Algorithm",
        authors="C. Lv, J. Xu, Y. Lu, X. Wang, Z. Wang, Z. Xu, D. Yu, X. Du, X. Zheng, X. Huang",
        where="ICML 2025, PMLR 267:41682-41700",
        url="https://arxiv.org/abs/2501.09976",
        summary="Networks that learn by local rules: no autograd graph, no weight transport, one phase.",
        folder="lightning_modules",
        public=(
            Public(
                "DLLClassifier",
                "module",
                small={"hidden_layer_sizes": [16], "num_classes": 10, "input_shape": 64, "lr": 0.01},
                data="seedbed.datasets.DigitsDataModule",
                data_small={"batch_size": 64},
            ),
            Public(
                "DLLRegressor",
                "module",
                small={"hidden_layer_sizes": [8], "num_targets": 1, "input_shape": 10, "lr": 0.01},
                data="seedbed.datasets.DiabetesDataModule",
                data_small={"batch_size": 64},
            ),
            Public(
                "DLLSequenceModel",
                "module",
                small={"input_size": 9, "output_size": 9, "hidden_size": 8, "optimizer": "adam", "lr": 0.01},
                data="seedbed.datasets.CharDataModule",
                data_small={"text": "abcd efgh " * 60, "seq_len": 8, "batch_size": 16},
            ),
            Public("DLLLinear", "layer", small={"in_features": 4, "out_features": 3}),
            Public("DLLConv1d", "layer", small={"in_channels": 2, "out_channels": 3, "kernel_size": 3}),
            Public("DLLConv2d", "layer", small={"in_channels": 2, "out_channels": 3, "kernel_size": 3}),
            Public("DLLMaxPool2d", "layer", small={"kernel_size": 2}),
            Public("DLLAvgPool2d", "layer", small={"kernel_size": 2}),
            Public("DLLGlobalAvgPool", "layer"),
            Public("DLLFlatten", "layer"),
            Public("DLLActivation", "layer"),
            Public("DLLBatchNorm", "layer", small={"num_features": 3}),
            Public("DLLSequential", "layer"),
            Public("DLLBranches", "layer"),
            Public("DLLRNN", "layer", small={"input_size": 3, "hidden_size": 4, "output_size": 2}),
            Public("build_network", "function"),
            Public("build_optimizer", "function"),
            Public("dll_gradients", "function"),
            Public("dll_mlp", "function"),
            Public("dll_cnn", "function"),
            Public("dll_text_cnn", "function"),
            Public(
                "seedbed.estimators.DLLMLPClassifier",
                "estimator",
                small={
                    "hidden_layer_sizes": [8],
                    "learning_rate_init": 0.02,
                    "batch_size": 256,
                    "max_iter": 40,
                    "accelerator": "cpu",
                },
            ),
            Public(
                "seedbed.estimators.DLLMLPRegressor",
                "estimator",
                small={
                    "hidden_layer_sizes": [8],
                    "learning_rate_init": 0.05,
                    "batch_size": 256,
                    "max_iter": 40,
                    "accelerator": "cpu",
                },
            ),
            Public(
                "seedbed.estimators.DLLCNNClassifier",
                "estimator",
                small={
                    "channels": [4],
                    "hidden_layer_sizes": [8],
                    "learning_rate_init": 0.02,
                    "batch_size": 256,
                    "max_iter": 40,
                    "accelerator": "cpu",
                },
            ),
            Public("seedbed.estimators.AlignmentDisplay", "display"),
        ),
        extras=("data",),
    ),
    Method(
        slug="metaoptimize",
        title="MetaOptimize: A Framework for Optimizing Step Sizes and Other Meta-parameters",
        authors="Arsalan Sharifnassab, Saber Salehkaleybar, Richard S. Sutton",
        where="ICML 2025, PMLR 267:54300-54325",
        url="https://openreview.net/forum?id=H78W6bTkuZ",
        summary="Wraps a torch optimizer and learns its step sizes while it trains.",
        folder="optimizers",
        public=(
            Public(
                "MetaOptimize",
                "optimizer",
                {"base": "AdamW", "base_kwargs": {"lr": 1e-3}, "meta_lr": 1e-2, "gamma": 0.9999},
            ),
            Public("MetaAdamW", "optimizer", {"lr": 1e-5, "meta_lr": 1e-2, "blocks": "layerwise"}),
            Public("MetaSGD", "optimizer", {"lr": 1e-3, "momentum": 0.9, "meta_lr": 1e-2}),
            Public("MetaLion", "optimizer", {"lr": 1e-4, "meta_lr": 1e-2, "blocks": "nodewise"}),
            Public("HypergradientDescent", "optimizer", {"lr": 1e-3, "meta_lr": 1e-4}),
            Public("IDBD", "optimizer", {"lr": 1e-2, "meta_lr": 1e-3}),
            Public("SMD", "optimizer", {"lr": 1e-2, "meta_lr": 1e-2, "gamma": 0.9}),
            Public("Lion", "optimizer", {"lr": 1e-3, "weight_decay": 0.01}),
            Public("StepSizeMonitor", "callback"),
            Public("StepSizeDisplay", "display"),
            Public("metaoptimize_reference", "function"),
            Public("reference_base", "function"),
            Public("reference_meta", "function"),
        ),
    ),
    Method(
        slug="pu_auc_covariate_shift",
        title="Positive-unlabeled AUC Maximization under Covariate Shift",
        authors="A. Kumagai, T. Iwata, H. Takahashi, T. Nishiyama, K. Adachi, Y. Fujiwara",
        where="ICML 2025",
        url="https://openreview.net/forum?id=HQEPgICjBS",
        summary="Ranks rows of a new population from positives and unlabeled rows of another: no negatives.",
        folder="estimators",
        public=(
            Public("PUAUCClassifier", "estimator", warns=("no target rows",)),
            Public("RuLSIF", "function"),
            Public("PUDomainStratifiedKFold", "function"),
            Public("PUAUCDisplay", "display"),
            Public("pu_auc_risk", "function"),
            Public("weighted_pu_auc_score", "function"),
            Public("auc_from_pu_auc", "function"),
            Public(
                "seedbed.lightning_modules.PUAUCModule",
                "module",
                small={"input_shape": 64, "hidden_layer_sizes": [8], "lr": 0.01},
                data="seedbed.datasets.PUDataModule",
                data_small={"batch_size": 128},
            ),
            Public("seedbed.datasets.make_pu_covariate_shift", "function"),
            Public("seedbed.datasets.make_pu_domain_split", "function"),
            Public("seedbed.datasets.make_pu_digits", "function"),
        ),
    ),
)


def get(slug: str) -> Method:
    """Return the method with this slug.

    Parameters
    ----------
    slug : str
        Such as ``"cojer"``.

    Returns
    -------
    Method
        The entry.

    Raises
    ------
    KeyError
        If there is none; the message lists those there are.
    """
    for method in METHODS:
        if method.slug == slug:
            return method
    raise KeyError(f"no method {slug!r}; there are {', '.join(method.slug for method in METHODS)}")


def publics(*kinds: Kind) -> list[tuple[Method, Public]]:
    """List public names of some kinds over all methods.

    Parameters
    ----------
    *kinds : str
        Kinds wanted; none means all.

    Returns
    -------
    list of (Method, Public)
        In catalog order.
    """
    return [
        (method, public)
        for method in METHODS
        for public in method.public
        if not kinds or public.kind in kinds
    ]
