"""Random numbers as a pure function of (seed, epoch, image), equal on every machine.

A counter-based generator: the words of the key are mixed by the splitmix64 finaliser (Steele,
Lea, Flood 2014). Integer arithmetic only, so the numbers depend neither on the device nor on the
batch size or the number of ranks.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from onsight_explain.devices import has_indices, module_of

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_COLUMNS = 64  # random numbers per image and epoch


def _signed(word: int) -> int:
    """Return the two's-complement value of a 64-bit word, as int64 tensors store it."""
    return word - (1 << 64) if word >> 63 else word


def mix(word: int) -> int:
    """Apply the splitmix64 finaliser to a 64-bit word."""
    word = (word + _GOLDEN) & _MASK
    word = ((word ^ (word >> 30)) * _MIX_1) & _MASK
    word = ((word ^ (word >> 27)) * _MIX_2) & _MASK
    return word ^ (word >> 31)


def key(*words: int) -> int:
    """Combine several words, such as (seed, epoch), into a 64-bit key."""
    state = 0
    for word in words:
        state = mix(state ^ (word & _MASK))
    return state


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Shift int64 words logically: torch shifts copies of the sign bit in, which are masked off."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _mix_tensor(words: Tensor) -> Tensor:
    words = words + _signed(_GOLDEN)
    words = (words ^ _shift_right(words, 30)) * _signed(_MIX_1)
    words = (words ^ _shift_right(words, 27)) * _signed(_MIX_2)
    return words ^ _shift_right(words, 31)


def uniform(seed: int, epoch: int, ids: Tensor, columns: Sequence[int]) -> Tensor:
    """Return numbers in [0, 1), one row per image, each a function of (seed, epoch, id, column).

    ids: int64 (B,) image ids; columns: which of an image's 64 numbers to return. Returns
    float32 (B, len(columns)) on the device of ids.
    """
    base = _signed(key(seed, epoch))
    counters = ids.unsqueeze(1) * _COLUMNS + constant(tuple(columns), torch.int64, ids.device)
    words = _mix_tensor(_mix_tensor(counters) ^ base)
    return _shift_right(words, 40).to(torch.float32) * (1.0 / (1 << 24))


def permutation(seed: int, epoch: int, length: int) -> Tensor:
    """Return the shuffled order of an epoch, int64 (length,), always computed on the CPU."""
    generator = torch.Generator().manual_seed(_signed(key(seed, epoch, length)))
    return torch.randperm(length, generator=generator)


def seed_generators(device: torch.device, *words: int) -> None:
    """Seed torch's generators, for dropout and the like."""
    seed = key(*words) >> 1
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 100 times as long
    if has_indices(device.type):
        module_of(device).default_generators[device.index or 0].manual_seed(seed)
    if device.type == "mps":
        torch.mps.manual_seed(seed)


@lru_cache(maxsize=64)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a small tensor, copied to its device once: each copy would wait for the device."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype).to(device)
