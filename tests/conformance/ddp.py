"""Run a function on several ranks of a gloo process group on this machine.

``run_ranks(fn, 2, ...)`` starts fresh processes, so ``fn`` has to be importable: a function at the top of a
module, for instance one in this folder (``from conformance.ddp_workers import train``). Every rank finds
``RANK``, ``LOCAL_RANK`` and ``WORLD_SIZE`` in its environment, so a Lightning ``Trainer(accelerator="cpu",
strategy="ddp", devices=2)`` created inside ``fn`` joins the group rather than starting processes of its own.
"""

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

# The fork server imports torch once; every rank is then forked from that single-threaded process.
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def run_ranks(fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 120.0) -> list[Any]:
    """Call ``fn(rank, *args)`` on every rank and return the results in rank order.

    Parameters
    ----------
    fn : callable
        Importable and picklable; ``torch.distributed`` is initialised (gloo, file store) when it is called.
        What it returns must be picklable; tensors come back as tensors.
    world_size : int
        Number of processes.
    *args : object
        Picklable arguments for ``fn``, the same for every rank.
    timeout : float
        Seconds after which all ranks are killed; also the time-out of each collective.

    Returns
    -------
    list
        One result per rank.

    Raises
    ------
    RuntimeError
        If a rank raised (with its traceback) or died; the other ranks are killed at once.
    TimeoutError
        If the ranks did not finish in time.
    """
    context = multiprocessing.get_context(_METHOD)
    if _METHOD == "forkserver":
        context.set_forkserver_preload(["torch", "torch.distributed"])
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        processes = [
            context.Process(target=_rank, args=(fn, rank, world_size, folder, timeout, args), daemon=True)
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        try:
            _wait(processes, timeout, Path(folder))
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()
        return [_read(Path(folder), rank)[1] for rank in range(world_size)]


def _wait(processes: list[Any], timeout: float, folder: Path) -> None:
    """Return when every rank has ended well; raise on the first that has not."""
    deadline = time.monotonic() + timeout
    while True:
        codes = [process.exitcode for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        if failed:
            # One that dies takes the others' collectives with it: what was reported first is the cause, or
            # the death of a rank that could report nothing.
            rank = min(failed, key=lambda rank: _written(folder, rank))
            outcome = _read(folder, rank)
            reason = outcome[1] if outcome is not None else f"it ended with exit code {codes[rank]}"
            raise RuntimeError(f"rank {rank} of {len(processes)} failed: {reason}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            slow = [rank for rank, code in enumerate(codes) if code is None]
            raise TimeoutError(f"ranks {slow} of {len(processes)} still ran after {timeout:g} s")
        time.sleep(0.02)


def _written(folder: Path, rank: int) -> int:
    path = folder / f"{rank}.pickle"
    return path.stat().st_mtime_ns if path.exists() else 0


def _read(folder: Path, rank: int) -> tuple[bool, Any] | None:
    path = folder / f"{rank}.pickle"
    return pickle.loads(path.read_bytes()) if path.exists() else None


def _rank(
    fn: Callable[..., Any], rank: int, world_size: int, folder: str, timeout: float, args: tuple[Any, ...]
) -> None:
    """Body of one process: join the group, call, leave the outcome in a file."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0", OMP_NUM_THREADS="1",
    )  # fmt: skip
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    path = Path(folder)
    try:
        dist.init_process_group(
            "gloo",
            init_method=(path / "store").as_uri(),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout),
        )
        outcome = (True, fn(rank, *args))
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001 - whatever it is, the parent reports it
        outcome = (False, traceback.format_exc())
    # In one step, so that the reader never sees half a file.
    unfinished = path / f"{rank}.unfinished"
    unfinished.write_bytes(pickle.dumps(outcome))
    unfinished.rename(path / f"{rank}.pickle")
    if not outcome[0]:
        os._exit(1)  # at once: a normal exit may wait for collectives that the other ranks never enter
