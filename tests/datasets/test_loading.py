"""Loaders: the order of an epoch depends on the seed and the epoch alone; a resume in mid-epoch is exact."""

import pytest
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper

from seedbed.datasets import ArrayDataset, ArrayLoader, EpochSampler
from seedbed.datasets.loading import OneHotDataset


def data(n=23):
    return ArrayDataset(torch.arange(2.0 * n).reshape(n, 2), torch.arange(n))


def order(loader):
    return [row for _, y in loader for row in y.tolist()]


def test_epoch_sampler():
    sampler = EpochSampler(50, seed=3)
    orders = []
    for epoch in (0, 1, 2):
        sampler.set_epoch(epoch)
        orders.append(tuple(sampler))
        assert sorted(orders[-1]) == list(range(50))
        assert tuple(sampler) == orders[-1]
    assert len(set(orders)) == 3
    assert tuple(EpochSampler(50, seed=3)) == orders[0]
    # Neighbours do not share orders: (seed 4, epoch 0) is not (seed 3, epoch 1).
    assert tuple(EpochSampler(50, seed=4)) not in orders
    assert len(sampler) == 50
    for arguments in ((0, 1), (3, -1)):
        with pytest.raises(ValueError, match="must be in"):
            EpochSampler(*arguments)
    with pytest.raises(TypeError):
        EpochSampler(3.5)


def test_orders_are_uniform():
    """Each row comes first about equally often over seeds and epochs (chi-squared at 1e-4)."""
    first = torch.zeros(5)
    for seed in range(40):
        sampler = EpochSampler(5, seed=seed)
        for epoch in range(25):
            sampler.set_epoch(epoch)
            first[next(iter(sampler))] += 1
    assert ((first - 200) ** 2 / 200).sum() < 23.5


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_hands_out_every_row_once(workers):
    before = torch.get_rng_state()
    loader = ArrayLoader.over(data(), batch_size=4, shuffle_seed=0, num_workers=workers)
    assert len(loader) == 6
    batches = list(loader)
    assert [len(y) for _, y in batches] == [4] * 5 + [3]
    for x, y in batches:
        assert torch.equal(x[:, 0], 2.0 * y)
    assert sorted(order(loader)) == list(range(23))
    assert order(loader) == list(EpochSampler(23, 0))
    assert order(ArrayLoader.over(data(), batch_size=4, num_workers=workers)) == list(range(23))
    assert len(ArrayLoader.over(data(), batch_size=4, shuffle_seed=0, drop_last=True)) == 5
    assert torch.equal(torch.get_rng_state(), before)  # none of it drew from the global generator


@pytest.mark.parametrize("workers", [0, 1])
def test_the_epoch_may_be_set_after_iter(workers):
    """As Lightning does on a resume: workers must not have fetched rows of another epoch already."""
    loader = ArrayLoader.over(data(), batch_size=4, shuffle_seed=0, num_workers=workers)
    iterator = iter(loader)
    loader.sampler.set_epoch(7)
    expected = EpochSampler(23, 0)
    expected.set_epoch(7)
    assert order(iterator) == list(expected)


@pytest.mark.parametrize("taken", [1, 3, 5])
def test_a_loader_goes_on_where_it_stood(taken):
    loader = ArrayLoader.over(data(), batch_size=4, shuffle_seed=0)
    loader.sampler.set_epoch(2)
    iterator = iter(loader)
    seen = [next(iterator)[1] for _ in range(taken)]
    state = loader.state_dict()
    assert state == {"epoch": 2, "taken": taken}
    other = ArrayLoader.over(data(), batch_size=4, shuffle_seed=0)
    other.load_state_dict(state)
    other.sampler.set_epoch(2)
    rest = [y for _, y in other]
    assert other.state_dict() == {"epoch": 2, "taken": 6}
    assert torch.equal(torch.cat(seen + rest), torch.tensor(order(loader)))
    assert len(order(other)) == 23  # once only


def test_a_saved_place_is_of_its_epoch_only():
    loader = ArrayLoader.over(data(), batch_size=4, shuffle_seed=0)
    loader.load_state_dict({"epoch": 2, "taken": 3})
    loader.sampler.set_epoch(3)
    assert len(order(loader)) == 23
    loader.load_state_dict({"epoch": 3, "taken": 6})  # at the very end: a new round
    assert len(order(loader)) == 23


def test_distributed_ranks_share_an_epoch_out():
    """Lightning's wrapper: together the ranks see each row once, anew each epoch, the same on every run."""
    seen = {}
    for epoch in (0, 1):
        shares = []
        for rank in (0, 1):
            wrapped = DistributedSamplerWrapper(EpochSampler(22, seed=1), num_replicas=2, rank=rank, seed=0)
            wrapped.set_epoch(epoch)
            assert wrapped.dataset._sampler.epoch == epoch
            shares.append(list(wrapped))
            assert shares[-1] == list(wrapped)
        assert sorted(shares[0] + shares[1]) == list(range(22))
        seen[epoch] = shares
    assert seen[0] != seen[1]


def test_bytes_become_floats_on_the_way_out():
    x = torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8)
    dataset = ArrayDataset(x, torch.arange(2), shift=torch.tensor(51.0), scale=torch.tensor(51.0))
    expected = torch.tensor([[-1.0, 4.0], [0.0, 1.0]])
    assert torch.equal(dataset.__getitems__([0, 1])[0], expected)
    assert torch.equal(dataset[1][0], expected[1])
    assert torch.equal(dataset.arrays()[0], expected)
    assert dataset.x.dtype == torch.uint8
    plain = ArrayDataset(x, torch.arange(2))[0][0]
    assert plain.dtype == torch.float32
    with pytest.raises(ValueError, match="same number of rows, got 2 and 3"):
        ArrayDataset(x, torch.arange(3))


def test_one_hot():
    x = torch.tensor([[0, 2, 1], [1, 1, 0]])
    dataset = OneHotDataset(x, x, num_codes=3)
    hot = dataset.__getitems__([0, 1])[0]
    assert hot.dtype == torch.float32
    assert torch.equal(hot, torch.nn.functional.one_hot(x, 3).float())
    assert torch.equal(dataset.arrays()[0], hot)
