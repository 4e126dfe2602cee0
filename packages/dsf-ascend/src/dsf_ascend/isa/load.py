"""MTE1: tiles from L1 into the cube's own memories, and the constants that memories are filled with. [asc-devkit:
LoadData, LoadDataWithTranspose, InitConstValue]"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod

import torch

from dsf.hdl import Chip
from dsf.isa import Isa, laws, read, write
from dsf.isa.families import add_copies, in_place
from dsf.isa.program import Affine, Instruction
from dsf.isa.rules import holds_numbers, limit, one_dtype, scalars_fit, whole
from dsf.isa.table import Cycles, Row, Rule

__all__ = ["declare", "windows"]

SOURCE = "asc-devkit guide, DataCopy and LoadData; rates: ini AICoreMemoryRates"
TRANSPOSE = "asc-devkit guide, LoadDataWithTranspose: squares of 16 (16 and 32 bits) or 32 (8 bits)"
IMAGES = "asc-devkit guide, LoadData3D: 512 / (n + 2) B a cycle to L0A, 512 / (n + 4) to L0B for n > 1"
CONSTANT = "asc-devkit guide, InitConstValue"
STORED = ("float16", "bfloat16", "float32", "int32", "int16", "int8", "uint8")
WINDOW = (
    "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "left", "right", "top", "bottom",
)  # fmt: skip
FILLED = ("float16", "bfloat16", "float32", "int32", "int16")


def declare(isa: Isa) -> None:
    """Add the copies into L0A, L0B and BT, with transposition and as convolution windows, and InitConstValue."""
    add_copies(isa, "MTE1", "L1", "L0A", "LoadData.L12L0A", "load.a", SOURCE)
    add_copies(isa, "MTE1", "L1", "L0B", "LoadData.L12L0B", "load.b", SOURCE)
    add_copies(isa, "MTE1", "L1", "BT", "DataCopy.L12BT", "load.bias", SOURCE, converts=True)
    for space, side in (("L0A", "a"), ("L0B", "b")):
        _add(isa, f"LoadDataWithTranspose.{space}", space, laws.stream, _turned,
             f"dst (n, m) in {space} = src (m, n) in L1 transposed, square by square", f"load.{side}.transposed",
             (one_dtype(0, 1), whole_squares), TRANSPOSE)  # fmt: skip
        _add(isa, f"LoadData3D.{space}", space, window_bytes(f"load3d_{space.lower()}_cycles"), _columns,
             f"dst in {space} (windows, C1 * kernel_h * kernel_w * C0) = the windows of an image in L1 (C1, H, W, C0), "
             "zeros around it", f"load.{side}.windows", (one_dtype(0, 1), holds_numbers(*WINDOW), the_windows_fit),
             IMAGES)  # fmt: skip
        _add_constant(isa, space, "MTE1")
    _add_constant(isa, "L1", "MTE2", "GM")


def _add(
    isa: Isa, name: str, space: str, law: Cycles, semantics: Callable[..., torch.Tensor], text: str, implements: str,
    rules: tuple[Rule, ...], source: str,
) -> None:  # fmt: skip
    roles = (("dst", write(space, dtypes=STORED)), ("src", read("L1", dtypes=STORED)))
    form = in_place(semantics)
    isa.add(Row(name, "MTE1", law, roles, semantics, text, form, rules, implements, None, None, source, lanes=form))


def _turned(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return src.transpose(-1, -2)


def whole_squares(chip: Chip, ins: Instruction) -> str | None:
    """A transposition goes by squares: 16 x 16 numbers of 16 or 32 bits, 32 x 32 of 8."""
    dst, src = ins.operands
    side = max(16, limit(chip, "vector_block_bytes") // src.itemsize)
    if len(src.shape) != 2 or dst.shape != src.shape[::-1]:
        return f"{src.shape} transposed is no {dst.shape}"
    return f"{src.shape} is not made of squares of {side}" if any(n % side for n in src.shape) else None


def windows(
    height: int, width: int, kernel_h: int, kernel_w: int, stride_h: int, stride_w: int, dilation_h: int,
    dilation_w: int, left: int, right: int, top: int, bottom: int,
) -> tuple[int, int]:  # fmt: skip
    """How many places a convolution's window has in an image, from top to bottom and from left to right."""
    high = height + top + bottom - dilation_h * (kernel_h - 1) - 1
    wide = width + left + right - dilation_w * (kernel_w - 1) - 1
    return high // stride_h + 1, wide // stride_w + 1


def _columns(
    dst: torch.Tensor, src: torch.Tensor, kernel_h: int, kernel_w: int, stride_h: int = 1, stride_w: int = 1,
    dilation_h: int = 1, dilation_w: int = 1, left: int = 0, right: int = 0, top: int = 0, bottom: int = 0,
) -> torch.Tensor:  # fmt: skip
    """im2col. src (..., C1, H, W, C0); a row of the result is a window, C1 outermost in it and C0 innermost."""
    high, wide = windows(src.shape[-3], src.shape[-2], kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w,
                         left, right, top, bottom)  # fmt: skip
    image = torch.nn.functional.pad(src, (0, 0, left, right, top, bottom))
    taps = [
        image[..., i : i + (high - 1) * stride_h + 1 : stride_h, j : j + (wide - 1) * stride_w + 1 : stride_w, :]
        for i in range(0, kernel_h * dilation_h, dilation_h)
        for j in range(0, kernel_w * dilation_w, dilation_w)
    ]
    stacked = torch.stack(taps, -2)  # (..., C1, high, wide, taps, C0)
    return stacked.movedim(-5, -3).flatten(-5, -4).flatten(-3, -1)


def the_windows_fit(chip: Chip, ins: Instruction) -> str | None:
    """The image is (C1, H, W, C0), C0 of 32 bytes, and the result has a row for each window."""
    dst, src = ins.operands
    numbers = {name: whole(ins, name) for name, _ in ins.scalars}
    width = limit(chip, "vector_block_bytes") // src.itemsize
    if len(src.shape) != 4 or src.shape[3] != width:
        return f"an image is (C1, H, W, {width}), not {src.shape}"
    if any(value < (name not in ("left", "right", "top", "bottom")) for name, value in numbers.items()):
        return f"{numbers}; expected kernels, strides and dilations from 1 on, paddings from 0 on"
    steps = {"stride_h": 1, "stride_w": 1, "dilation_h": 1, "dilation_w": 1}
    pads = dict.fromkeys(("left", "right", "top", "bottom"), 0)
    places = windows(src.shape[1], src.shape[2], **{**steps, **pads, **numbers})
    if min(places) < 1:
        return f"no window of {numbers['kernel_h']} x {numbers['kernel_w']} fits {src.shape}"
    wanted = prod(places), src.shape[0] * numbers["kernel_h"] * numbers["kernel_w"] * width
    return None if dst.shape == wanted else f"the windows of {src.shape} make {wanted}, not {dst.shape}"


def window_bytes(extra: str) -> Cycles:
    """As a copy while windows lie side by side; at n columns from window to window a fractal takes n + extra cycles."""

    def cycles(chip: Chip, row: Row, ins: Instruction) -> int:
        dst, src = ins.operands
        path, step = chip.paths[src.space, dst.space], whole(ins, "stride_w", 1)
        if step == 1:
            return path.startup_cycles + ceil(dst.nbytes / path.bytes_per_cycle)
        return path.startup_cycles + ceil(dst.nbytes / limit(chip, "fractal_bytes")) * (step + limit(chip, extra))

    return cycles


def _add_constant(isa: Isa, space: str, engine: str, source: str = "L1") -> None:
    form = in_place(_constant)
    isa.add(
        Row(f"InitConstValue.{space}", engine, laws.filling(source), (("dst", write(space, dtypes=FILLED)),), _constant,
            f"dst in {space} = value everywhere", form, (scalars_fit, in_blocks), f"fill.{space.lower()}", None, None,
            CONSTANT, lanes=form)
    )  # fmt: skip


def _constant(dst: torch.Tensor, value: float) -> torch.Tensor:
    return torch.full_like(dst, value)


def in_blocks(chip: Chip, ins: Instruction) -> str | None:
    """Memories are filled by the block: 32 bytes of L1, a fractal of L0A and L0B."""
    (dst,) = ins.operands
    size = chip.memories[dst.space].alignment
    if isinstance(dict(ins.scalars).get("value"), Affine):
        return "value depends on a loop; expected a number"
    return None if dst.nbytes % size == 0 else f"{dst.nbytes} bytes of {dst.space}; expected a multiple of {size}"
