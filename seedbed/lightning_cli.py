"""``seedbed fit``: LightningCLI over the suite's modules, optimizers and data modules, and the user's own.

Everything in a config is a class to import and arguments to call it with, so run only configs you trust.
"""

import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from seedbed.catalog import load, publics
from seedbed.tour import interrupted

DEFAULT_EPOCHS = 10


def register() -> None:
    """Import the suite's modules, optimizers and data modules, so that their short names resolve.

    A name whose extra is not installed is skipped; asking for it by its full path says what is missing.
    """
    paths = [method.path(public) for method, public in publics("module", "optimizer", "callback")]
    datasets = import_module("seedbed.datasets")
    paths += [f"seedbed.datasets.{name}" for name in datasets.__all__ if name.endswith("DataModule")]
    for path in paths:
        try:
            load(path)
        except ImportError:
            continue


class SeedbedCLI(LightningCLI):
    """LightningCLI with the ``fit`` command alone.

    ``model`` and ``data`` take any LightningModule and LightningDataModule by class path, and the suite's
    by short name. A module takes its optimizer as an argument of its own (``model.init_args.optimizer``).
    """

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Name the command and the arguments of ``Trainer.fit`` that do not come from the config.

        Returns
        -------
        dict
            Only ``"fit"``.
        """
        return {"fit": LightningCLI.subcommands()["fit"]}

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the command line passed in; unlike the base class, whatever ``sys.argv`` holds.

        Parameters
        ----------
        parser : LightningArgumentParser
            The main parser.
        args : list of str
            The command line.
        """
        self.config = parser.parse_args(args)

    def before_instantiate_classes(self) -> None:
        """Fill in two defaults safer than Lightning's.

        Where the config sets no end, train for 10 epochs instead of 1000; load a checkpoint given by
        ``--ckpt_path`` without running code from it, unless ``--weights_only=false`` says otherwise.
        """
        config = self.config.fit
        trainer = config.trainer
        if trainer.max_epochs is None and trainer.max_time is None and trainer.max_steps == -1:
            trainer.max_epochs = DEFAULT_EPOCHS
        if "weights_only" in config and config.weights_only is None:
            config.weights_only = True

    def fit(self, **arguments: Any) -> None:
        """Run ``Trainer.fit``.

        Parameters
        ----------
        **arguments
            Its arguments.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C, once the trainer has shut down (it turns it into SystemExit).
        """
        handler = signal.getsignal(signal.SIGINT)
        try:
            self.trainer.fit(**arguments)
        except SystemExit as error:
            if interrupted(error):
                raise KeyboardInterrupt from error
            raise
        finally:
            signal.signal(signal.SIGINT, handler)

    def after_fit(self) -> None:
        """Say where the checkpoint and the config went."""
        best = getattr(self.trainer.checkpoint_callback, "best_model_path", "")
        places = [place for place in (best, self.trainer.log_dir) if place]
        if self.trainer.is_global_zero and places:
            sys.stderr.write(f"written: {places[0]}\n")


def fit(arguments: Sequence[str]) -> SeedbedCLI:
    """Fit the model of a config.

    Parameters
    ----------
    arguments : sequence of str
        What follows ``seedbed fit``, such as ``["--config", "run.yaml", "--trainer.max_epochs=3"]``.

    Returns
    -------
    SeedbedCLI
        With ``trainer``, ``model`` and ``datamodule``.

    Raises
    ------
    SystemExit
        With code 2 if the arguments or the config are wrong; 0 after ``--help``.
    """
    register()
    return SeedbedCLI(
        args=["fit", *arguments],
        seed_everything_default=0,
        auto_configure_optimizers=False,
        parser_kwargs={"prog": "seedbed"},
    )
