"""An error of one process is raised on all of them."""

import threading

import pytest
import torch

from comera_dist.errors import CheckpointError, DataError
from comera_dist.runtime.processes import Processes, alone
from comera_dist.runtime.together import iterate_together, together


class Threads(Processes):
    """Processes that are threads of this one."""

    def __init__(self, index: int, count: int, barrier: threading.Barrier, box: list):
        super().__init__(index, count, torch.device("cpu"))
        object.__setattr__(self, "barrier_of_threads", barrier)
        object.__setattr__(self, "box", box)

    def gather(self, thing):
        self.box[self.index] = thing
        self.barrier_of_threads.wait(10)
        things = list(self.box)
        self.barrier_of_threads.wait(10)
        return things

    def sum(self, values):
        return [float(sum(column)) for column in zip(*self.gather(values), strict=True)]


def outcomes(*actions):
    """What `together` returns or raises on each of as many processes."""
    barrier, box, found = threading.Barrier(len(actions)), [None] * len(actions), [None] * len(actions)

    def run(index):
        try:
            found[index] = together(actions[index], Threads(index, len(actions), barrier, box))
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def fail(error):
    raise error


def test_each_process_has_its_own_result_where_none_fails():
    assert outcomes(lambda: 1, lambda: 2) == [1, 2]


def test_all_processes_raise_the_error_of_the_first_that_fails():
    errors = outcomes(
        lambda: 1, lambda: fail(CheckpointError("the disk is full")), lambda: fail(DataError("a shard is gone"))
    )
    assert [(type(error), str(error)) for error in errors] == [(CheckpointError, "the disk is full")] * 3


def test_a_process_by_itself_needs_no_process_group():
    assert together(lambda: 1, alone()) == 1
    assert list(iterate_together([1, 2], alone())) == [1, 2]
    with pytest.raises(DataError, match="gone"):
        together(lambda: fail(DataError("gone")), alone())
    assert not torch.distributed.is_initialized()


def test_every_collective_of_one_process_is_the_identity():
    processes, values = Processes(0, 1, torch.device("cpu")), torch.tensor([1.0, -2.0])
    assert processes.sum([1, 2.5]) == [1.0, 2.5]
    assert torch.equal(processes.sum_tensor(values), values)
    assert torch.equal(processes.broadcast(values, 0), values)
    assert processes.spread(values) == 0.0
    assert processes.are_alike(torch.tensor([3, -(2**63)])).all()
    assert (processes.max(2.0), processes.gather("x"), processes.from_first("x")) == (2.0, ["x"], "x")
    assert processes.claims("the word")
