"""Oracle: the words of torch and of CUDA's libraries."""

import pytest
import torch

from onsight_explain.devices import is_out_of_memory, release_cached_memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(""),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: 8 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
    ],
)
def test_memory_running_out_is_recognised_by_type_or_words(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("words", ["CUBLAS_STATUS_NOT_INITIALIZED", "mat1 and mat2 shapes", ""])
def test_other_errors_are_not(words):
    assert not is_out_of_memory(RuntimeError(words))


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_each_kind_of_device_frees_its_own_memory(monkeypatch, kind):
    freed = []
    for name in ("cuda", "xpu", "mps"):
        monkeypatch.setattr(
            getattr(torch, name), "empty_cache", lambda name=name: freed.append(name)
        )
    release_cached_memory(torch.device(kind))
    release_cached_memory(torch.device("cpu"))
    assert freed == [kind]
