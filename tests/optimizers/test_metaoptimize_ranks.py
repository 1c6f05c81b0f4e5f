"""MetaOptimize on two ranks: data parallel and sharded training equal training on the joined batch."""

import pytest
import torch

from conformance.ddp import run_ranks
from conformance.sharded_optimizers import compare_engines, split_columns, sum_over_a_group

VARIANTS = {
    "scalar": {"meta_lr": 0.05},
    "layerwise": {"blocks": "layerwise", "meta_lr": 0.05},
    "nodewise": {"blocks": "nodewise", "meta": "adam", "meta_lr": 0.05},
    "weightwise": {"blocks": "weightwise", "meta_lr": 0.05, "alpha_bounds": (1e-5, 1e-1)},
    "analytic": {"delta": "analytic", "meta": "adam", "meta_lr": 0.05},
    "learned": {"meta_parameters": ("lr", "weight_decay", "momentum"), "meta": "adam", "meta_lr": 0.05},
    "second gradient": {"hessian": "finite_difference", "gamma": 0.9, "meta": "adam", "meta_lr": 0.05},
}


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(compare_engines, 2, VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_ddp_and_fsdp_equal_the_joined_batch(ranks, name):
    for rank in ranks:
        alone, spread, sharded = rank[name]["weights"]
        torch.testing.assert_close(spread, alone, rtol=0, atol=1e-9)
        torch.testing.assert_close(sharded, alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in ("nodewise", "weightwise")])
def test_z_is_that_of_whole_tensors_on_every_rank(ranks, name):
    first = ranks[0][name]["z"][0]
    assert any(z != 0 for z in first[-1].values())
    for rank in ranks:
        for run in rank[name]["z"]:
            for z, wanted in zip(run, first, strict=True):
                assert z == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    # beta is moved by the same bits everywhere, or ranks would part
    assert ranks[0][name]["z"][1] == ranks[1][name]["z"][1]
    assert ranks[0][name]["z"][2] == ranks[1][name]["z"][2]
    assert ranks[0][name]["norms"] == ranks[1][name]["norms"]


@pytest.mark.parametrize("name", VARIANTS)
def test_distributed_checkpoints_resume_to_the_last_bit(ranks, name):
    for rank in ranks:
        assert len(rank[name]["resumed"]) == 3
        for resumed in rank[name]["resumed"]:
            assert torch.equal(resumed, rank[name]["on"])


def test_a_process_group_sums_the_parts():
    for z_half, z_full, same_weights, same_sizes in run_ranks(sum_over_a_group, 2):
        assert z_half == pytest.approx(z_full, rel=1e-12)
        assert z_full != 0
        assert same_weights
        assert same_sizes


def test_matrices_split_by_columns():
    for rank in run_ranks(split_columns, 2):
        for plain, split, beta, its in rank.values():
            torch.testing.assert_close(split, plain, rtol=1e-12, atol=0)
            assert beta is None or torch.allclose(beta, its, rtol=1e-12, atol=1e-14)
        assert rank["nodewise"][3].shape == (3, 1)
        assert rank["nodewise"][3].unique().numel() == 3
        assert rank["weightwise"][3].shape == (3, 5)
