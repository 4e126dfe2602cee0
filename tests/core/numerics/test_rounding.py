"""Rounding once, at the points where rounding twice gives another number."""

from __future__ import annotations

import pytest
import torch

from dsf.numerics.rounding import rounded


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (1 + 2**-11 + 2**-40, torch.float16, 1 + 2**-10),  # just over the middle; float32 forgets the 2^-40
        (1 + 2**-11 - 2**-40, torch.float16, 1.0),
        (1 + 2**-11 + 0.75 * 2**-23, torch.float16, 1 + 2**-10),  # float32's nearest is not the middle and must stay
        (1 + 3 * 2**-11 - 2**-40, torch.float16, 1 + 2**-10),
        (1 + 2**-11, torch.float16, 1.0),  # the middle itself goes to even
        (1 + 3 * 2**-11, torch.float16, 1 + 2**-9),
        (-(1 + 2**-11 + 2**-40), torch.float16, -(1 + 2**-10)),
        (1 + 2**-8 + 2**-40, torch.bfloat16, 1 + 2**-7),
        (2.0**-25 + 2.0**-60, torch.float16, 2.0**-24),  # the least subnormal
        (2.0**-25, torch.float16, 0.0),
        (65519.999999, torch.float16, 65504.0),
        (65520.0, torch.float16, torch.inf),
        (1e300, torch.bfloat16, torch.inf),
        (1e-300, torch.float16, 0.0),
        (0.1, torch.float32, 0.10000000149011612),
    ],
)
def test_a_number_is_rounded_once(value: float, dtype: torch.dtype, wanted: float) -> None:
    """In a tensor that is long enough for torch's vectorised conversion, and in one that is not."""
    for count in (1, 67):
        result = rounded(torch.full((count,), value, dtype=torch.float64), dtype)
        assert result.dtype == dtype
        assert result.double().tolist() == [wanted] * count


def test_what_is_no_number_stays_none() -> None:
    value = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)
    result = rounded(value, torch.float16)
    assert result[0].isnan()
    assert result[1:].tolist() == [torch.inf, -torch.inf]


def test_signs_of_zero_are_kept() -> None:
    assert rounded(torch.tensor([-0.0], dtype=torch.float64), torch.float16).signbit().item()


def test_whole_numbers_are_converted_as_torch_does() -> None:
    assert rounded(torch.tensor([3, -4]), torch.float16).tolist() == [3.0, -4.0]
    assert rounded(torch.tensor([3.7, -4.2], dtype=torch.float64), torch.int8).tolist() == [3, -4]
