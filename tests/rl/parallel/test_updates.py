"""Training on several ranks makes the update of one process: DDP and FSDP2, on gloo, with fixed rollout batches."""

import math

import pytest
import torch

from tests.rl.parallel.injected import InjectedRank, InjectedRanks, Run

SHARDING = ["none", "full"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    ranks = InjectedRanks(2, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def one():
    """The results of one process, by run."""
    found = {}

    def train(run):
        if run not in found:
            found[run] = InjectedRank(0, 1).train(run)
        return found[run]

    return train


def relative_difference(a, b):
    return math.dist(a, b) / math.hypot(*b)


def assert_same_curves(a, b, rel):
    if isinstance(b, dict):
        assert a.keys() == b.keys()
        for key in b:
            assert_same_curves(a[key], b[key], rel)
    elif isinstance(b, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same_curves(x, y, rel)
    elif isinstance(b, float):
        assert a == pytest.approx(b, rel=rel, abs=1e-9, nan_ok=True)
    else:
        assert a == b


@pytest.mark.parametrize("sharding", SHARDING)
# With one group and large micro-batches, rank 1 has no work of its own.
@pytest.mark.parametrize(("groups", "tokens"), [(5, 40), (2, 10_000)])
def test_two_ranks_make_the_update_of_one_process_in_float64(sharding, groups, tokens, one, two):
    expected = one(Run(groups=groups, micro_batch_tokens=tokens))
    for result in two.train(Run(sharding, groups=groups, micro_batch_tokens=tokens)):
        assert relative_difference(result["update"], expected["update"]) < 1e-8
        assert relative_difference(result["moments"], expected["moments"]) < 1e-8
        assert_same_curves(result["curves"], expected["curves"], 1e-8)


@pytest.mark.parametrize("sharding", SHARDING)
def test_two_ranks_make_the_update_of_one_process_in_fp32(sharding, one, two):
    expected = one(Run(dtype="float32"))
    for result in two.train(Run(sharding, "float32")):
        assert relative_difference(result["update"], expected["update"]) < 1e-3


@pytest.mark.parametrize("sharding", SHARDING)
@pytest.mark.parametrize("fault", ["dropped", "twice", "mean_of_means"])
def test_a_wrong_sum_over_ranks_changes_the_update(sharding, fault, one, two):
    for result in two.train(Run(sharding, fault=fault)):
        assert relative_difference(result["update"], one(Run())["update"]) > 1e-2
