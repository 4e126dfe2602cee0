"""MTE1, MTE2, MTE3: the engines that move tiles between memories. [asc-devkit: DataCopy, DataCopyPad, LoadData]

An operand's shape and strides stand for DataCopyParams (block count, block length, gaps); a copy into L1 or L0 holds
the tile in the engine's fractal order, which the operand's window leaves to the memory (tagged, not permuted). A row
that is no multiple of 32 bytes is what CANN has DataCopyPad for; where it fills the rest with a number, or drops it,
that is an instruction of its own here. ND2NZ and NZ2ND permute for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from dsf.hdl import Chip
from dsf.isa import Isa, Operand, accumulate, laws, read, write
from dsf.isa.families import add_block_gather, add_copies, add_indexed, in_place
from dsf.isa.program import Instruction
from dsf.isa.rules import holds_numbers, limit, one_dtype, one_shape, scalars_fit, whole
from dsf.isa.table import Row, Rule
from dsf_ascend.isa import load
from dsf_ascend.isa.fractals import columns_in_fractals, from_fractals, to_fractals

__all__ = ["declare"]

SOURCE = "asc-devkit guide, DataCopy and LoadData; rates: ini AICoreMemoryRates"
INDEXED = "asc-devkit guide, DataCopy; its address is the scalar unit's, which reads group lists from GM"
PAD = "asc-devkit guide, DataCopyPad"
FRACTALS = "asc-devkit guide, DataCopy ND2NZ and NZ2ND"
ATOMIC = "asc-devkit guide, SetAtomicAdd, SetAtomicMax, SetAtomicMin"


def declare(isa: Isa) -> None:
    """Add the copies of the three engines."""
    add_copies(isa, "MTE2", "GM", "L1", "DataCopy.GM2L1", "load.matrix", SOURCE, [gap_fits_the_field])
    add_copies(isa, "MTE2", "GM", "UB", "DataCopy.GM2UB", "load", SOURCE, [gap_fits_the_field])
    add_copies(isa, "MTE3", "UB", "GM", "DataCopy.UB2GM", "store", SOURCE, [gap_fits_the_field])
    add_copies(isa, "MTE3", "L1", "GM", "DataCopy.L12GM", "store.l1", SOURCE, [gap_fits_the_field])
    add_indexed(isa, "MTE2", "GM", "UB", "DataCopy.Gather", "", SOURCE)
    add_indexed_store(isa)
    add_block_gather(isa, "MTE2", "GM", "L1", "DataCopy.GM2L1.Indexed", INDEXED)
    _add_padded(isa)
    _add_fractals(isa)
    _add_atomics(isa)
    load.declare(isa)


def add_indexed_store(isa: Isa) -> None:
    """Scattering is MTE3's: rows leave UB for addresses that the scalar unit computes."""
    probe = Isa("probe")
    add_indexed(probe, "MTE3", "GM", "UB", "gather", "DataCopy.Scatter", SOURCE)
    isa.add(probe["DataCopy.Scatter"])


def _add_padded(isa: Isa) -> None:
    for space in ("UB", "L1"):
        _add(isa, f"DataCopyPad.GM2{space}", "MTE2", "GM", space, _padded,
             "dst = left times value, a row of src, value up to the end; left and right within a block of 32 bytes",
             "load.padded", (one_dtype(0, 1), holds_numbers("left"), pads_within_a_block, scalars_fit,
              gap_fits_the_field), PAD)  # fmt: skip
    _add(isa, "DataCopyPad.UB2GM", "MTE3", "UB", "GM", _cut, "dst = the beginning of each row of src, padded in UB",
         "store.padded", (one_dtype(0, 1), cut_within_a_block, gap_fits_the_field), PAD)  # fmt: skip


def _add(
    isa: Isa, name: str, engine: str, source: str, target: str, semantics: Callable[..., torch.Tensor], text: str,
    implements: str, rules: tuple[Rule, ...], origin: str,
) -> None:  # fmt: skip
    roles, form = (("dst", write(target)), ("src", read(source))), in_place(semantics)
    isa.add(
        Row(name, engine, laws.stream, roles, semantics, text, form, rules, implements, None, None, origin, lanes=form)
    )


def _padded(dst: torch.Tensor, src: torch.Tensor, left: int = 0, value: float = 0) -> torch.Tensor:
    right = dst.shape[-1] - left - src.shape[-1]
    return torch.nn.functional.pad(src, (left, right), value=value)


def _cut(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return src[..., : dst.shape[-1]]


def pads_within_a_block(chip: Chip, ins: Instruction) -> str | None:
    """A row of the result is a row of the source with less than a block more on either side, in whole blocks."""
    dst, src = ins.operands
    left, size = whole(ins, "left"), limit(chip, "vector_block_bytes")
    right = dst.shape[-1] - left - src.shape[-1]
    if dst.shape[:-1] != src.shape[:-1] or left < 0 or right < 0:
        return f"{src.shape} with {left} on its left does not fill {dst.shape}"
    if max(left, right) * dst.itemsize >= size:
        return f"{left} on the left and {right} on the right; expected less than a block of {size} bytes each"
    return (
        None if dst.shape[-1] * dst.itemsize % size == 0 else f"rows of {dst.shape[-1]} are no blocks of {size} bytes"
    )


def cut_within_a_block(chip: Chip, ins: Instruction) -> str | None:
    """A row of the result is less than a block shorter than the row in UB."""
    dst, src = ins.operands
    rest, size = src.shape[-1] - dst.shape[-1], limit(chip, "vector_block_bytes")
    fits = dst.shape[:-1] == src.shape[:-1] and 0 <= rest * src.itemsize < size
    return None if fits else f"{dst.shape} of {src.shape}; a row loses less than a block of {size} bytes"


def _add_fractals(isa: Isa) -> None:
    _add(isa, "DataCopy.ND2NZ", "MTE2", "GM", "L1", _to_nz,
         "dst (columns / C0, rows, C0) = src (rows, columns), C0 numbers of 32 bytes, zeros behind the last column",
         "load.nz", (one_dtype(0, 1), columns_in_fractals(0, 1), row_stride_fits), FRACTALS)  # fmt: skip
    _add(isa, "DataCopy.NZ2ND", "MTE3", "UB", "GM", _to_nd,
         "dst (rows, columns) = src (columns / C0, rows, C0); the vendor's library does it in many plain copies",
         "store.nd", (one_dtype(0, 1), columns_in_fractals(1, 0)), FRACTALS)  # fmt: skip


def _to_nz(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return to_fractals(src, dst.shape[-1])


def _to_nd(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return from_fractals(src, dst.shape[-1])


def row_stride_fits(chip: Chip, ins: Instruction) -> str | None:
    """ND2NZ's srcDValue, from row to row in elements, has 16 bits."""
    stride, most = ins.operands[1].stride[0], limit(chip, "nd2nz_row_stride")
    return None if stride <= most else f"{stride} elements from row to row; expected {most} at most"


def _add_atomics(isa: Isa) -> None:
    """Stores that add to what main memory holds, or keep the larger or smaller of the two."""
    dtypes = ("float16", "bfloat16", "float32", "int32", "int16", "int8")
    kinds: dict[str, Callable[..., torch.Tensor]] = {"Add": torch.add, "Max": torch.maximum, "Min": torch.minimum}
    for name, function in kinds.items():
        semantics = partial(_combined, function)
        roles = (("dst", accumulate("GM", dtypes=dtypes)), ("src", read("UB", dtypes=dtypes)))
        form = in_place(semantics)
        isa.add(
            Row(f"DataCopy.Atomic{name}", "MTE3", laws.stream, roles, semantics,
                f"dst in GM = {name.lower()}(dst, src)", form, (one_shape, one_dtype(0, 1), gap_fits_the_field),
                f"store.atomic.{name.lower()}", None, None, ATOMIC, lanes=form)
        )  # fmt: skip


def _combined(function: Callable[..., torch.Tensor], dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return function(dst, src)


def gap_fits_the_field(chip: Chip, ins: Instruction) -> str | None:
    """DataCopy's gap field counts the blocks between the end of one row and the start of the next in 16 bits."""
    blocks, size = limit(chip, "copy_gap_blocks"), limit(chip, "vector_block_bytes")
    for operand in ins.operands:
        for gap in _gaps(operand):
            if gap > blocks * size:
                return f"a gap of {gap} bytes between rows exceeds {blocks} blocks of {size} bytes; copy row by row"
    return None


def _gaps(operand: Operand) -> Iterator[int]:
    """Bytes between the end of one piece and the start of the next, for every dimension from the closest on."""
    reach = 1
    for n, stride in sorted(zip(operand.shape, operand.stride, strict=True), key=lambda dim: dim[1]):
        if n > 1:
            yield (stride - reach) * operand.itemsize
            reach += (n - 1) * stride
