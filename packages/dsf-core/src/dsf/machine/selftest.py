"""What `fast` takes for granted of this host's arithmetic, each checked by name before a machine is built on it.

`exact` computes in float64 and rounds once, and takes none of it for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from dsf import errors

__all__ = ["ASSUMPTIONS", "check"]

U32 = 2.0**-24  # half a unit of the last place of a float32


def _numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _products_are_summed_in_float32() -> bool:
    """A library that computes in bfloat16 or tf32 behind torch's back misses this bound by far."""
    a, b = _numbers(33, 96, seed=1), _numbers(96, 19, seed=2)
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    return bool(((torch.mm(a, b) - exact).abs() <= 98 * U32 * size).all())


def _lanes_are_products_one_after_the_other() -> bool:
    a, b = _numbers(3, 24, 64, seed=3), _numbers(3, 64, 16, seed=4)
    room = torch.zeros(3, 24 * 16 + 1)[:, :-1].unflatten(1, (24, 16))  # lanes lie apart, as cores' memories do
    room.baddbmm_(a, b)
    return all(torch.equal(lane, torch.mm(x, y)) for lane, x, y in zip(room, a, b, strict=True))


def _a_batch_may_share_an_operand() -> bool:
    a, b = _numbers(24, 64, seed=5), _numbers(3, 64, 16, seed=6)
    return torch.equal(torch.bmm(a.expand(3, 24, 64), b), torch.bmm(a.repeat(3, 1, 1), b))


def _whole_numbers_are_exact_in_float32() -> bool:
    a = torch.full((4, 1024), -128.0)
    return bool((torch.mm(a, a.t()) == 1024 * 128 * 128).all())


def _subnormals_are_kept() -> bool:
    """By their bits: who flushes subnormals also takes them for zero in comparisons."""
    small = torch.tensor([1 << 9], dtype=torch.int32).view(torch.float32)  # 2^-140
    return (small + small).view(torch.int32).item() == 1 << 10 and (small * 0.5).view(torch.int32).item() == 1 << 8


def _halves_are_rounded_to_even() -> bool:
    ties = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519.0, 65520.0, 2.0**-25, 3 * 2.0**-25])
    wanted = [1.0, 1 + 2.0**-9, 65504.0, torch.inf, 0.0, 2.0**-23]
    coarse = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8]).bfloat16()
    return ties.half().tolist() == wanted and coarse.tolist() == [1.0, 1 + 2.0**-6]


ASSUMPTIONS: Mapping[str, Callable[[], bool]] = {
    "products of float32 are summed in float32": _products_are_summed_in_float32,
    "a batch of products is one product after the other": _lanes_are_products_one_after_the_other,
    "a batch may share an operand": _a_batch_may_share_an_operand,
    "sums of whole numbers below 2^24 are exact in float32": _whole_numbers_are_exact_in_float32,
    "subnormal numbers are kept": _subnormals_are_kept,
    "conversions to 16 bits round halves to even": _halves_are_rounded_to_even,
}


def check(assumptions: Mapping[str, Callable[[], bool]] = ASSUMPTIONS) -> None:
    """Raise DSF-X011 naming every assumption that this host does not keep."""
    with torch.no_grad():
        broken = [name for name, holds in assumptions.items() if not holds()]
    if broken:
        raise errors.MachineError(
            "DSF-X011",
            f"numerics 'fast' cannot be trusted on this host, since torch {torch.__version__} does not keep: "
            f"{'; '.join(broken)}; undo torch.set_flush_denormal and torch.set_float32_matmul_precision, or enable "
            "with exact=True",
        )
