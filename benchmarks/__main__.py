"""Run benchmarks: ``python -m benchmarks [<slug> ...] [--size small|full] [--check] [--threads N]``."""

import argparse
import json
import sys
import time
from importlib import import_module

import torch
from threadpoolctl import threadpool_limits

from benchmarks.harness import results_file, say, write
from seedbed.catalog import METHODS


def main() -> int:
    """Run the benchmarks named on the command line; returns the exit code."""
    slugs = [method.slug for method in METHODS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("slug", nargs="*", choices=[*slugs, []], help="methods; none means all")
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument(
        "--check", action="store_true", help="fail where a row that held no longer does; write nothing"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="sums, and so results, depend on it (default 1)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    threadpool_limits(arguments.threads)
    broken = []
    for slug in arguments.slug or slugs:
        module = import_module(f"benchmarks.{slug}")
        start = time.perf_counter()
        rows = module.run(arguments.size)
        seconds = time.perf_counter() - start
        for row in rows:
            mark = "ok  " if row.holds else "LOSS"
            peer = (
                f"  ({row.peer}: {row.peer_value:.4g}, ratio {row.won:.3g})"
                if row.peer_value is not None
                else ""
            )
            target = f"  [target {row.target:g}]" if row.target is not None else ""
            say(f"{mark} {slug}: {row.name}: {row.value:.4g} {row.unit}{peer}{target}")
        if not arguments.check:
            written = write(slug, arguments.size, rows, seconds, module.PACKAGES)
            say(f"     {slug}: {seconds:.0f} s -> {written.name}")
            continue
        path = results_file(slug, arguments.size)
        if not path.exists():
            broken.append(f"{slug}: no results on record ({path.name}); run without --check first")
            continue
        held = {row["name"] for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if row["holds"]}
        now = {row.name: row.holds for row in rows}
        broken += [
            f"{slug}: {name}: {'missing' if name not in now else 'no longer holds'}"
            for name in sorted(held)
            if not now.get(name, False)
        ]
    for line in broken:
        say(f"FAIL {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
