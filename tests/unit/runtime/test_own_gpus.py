"""Processes that share a GPU are refused before NCCL, which fails or hangs with them.

torch's documentation of distributed: "each process must have exclusive access to every GPU it uses, as sharing GPUs
between processes can result in deadlock or NCCL invalid usage".
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from comera_dist.errors import LaunchError
from comera_dist.runtime import processes
from comera_dist.runtime.launchers import Place
from comera_dist.runtime.processes import check_own_gpu


@pytest.mark.parametrize(("gpus", "refused"), [("abc", 0), ("aab", 1), ("aaaa", 3), ("abab", 2)])
def test_all_processes_refuse_a_shared_gpu(gpus, refused):
    store = dist.HashStore()

    def check(gpu: str) -> str:
        try:
            check_own_gpu(gpu, len(gpus), store)
        except LaunchError as error:
            return str(error)
        return "fine"

    with ThreadPoolExecutor(len(gpus)) as pool:
        said = set(pool.map(check, gpus))
    assert len(said) == 1
    sentence = f"{refused} of {len(gpus)} processes found no GPU that no other process has"
    assert said.pop().startswith(sentence if refused else "fine")


def test_processes_tell_their_gpu_when_they_meet(monkeypatch):
    store, met = dist.HashStore(), []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: met.append(backend))
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="the only one"))
    monkeypatch.setattr(processes, "choose_interface", lambda address: None)

    def join(index: int) -> None:
        with pytest.raises(LaunchError, match=r"^1 of 2 processes found no GPU"):
            processes._join(Place(index, 2), torch.device("cuda", 0), timedelta(seconds=60))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(join, range(2)))
    assert met == ["nccl", "nccl"]
