"""Every instruction of the table in a program: it is built (so every rule is asked), its order is checked, the fast and
the exact functional plane leave the bytes that the oracle leaves, and the timing plane has the oracle's cycles.

A program brings random numbers to each operand's memory along the chip's own ways, runs the one instruction, and takes
what it wrote to main memory; L0A, L0B, BT and FB, which nothing leaves as they are, are seen through a product or a
Fixpipe. PipeBarrier stands between the steps.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import define, evolve, field

from dsf.hdl import Chip
from dsf.isa import Builder, Operand, Program, Row
from dsf.isa.program import torch_dtype
from dsf.machine import ordering
from dsf.machine.arena import Arena
from dsf.machine.functional import Functional
from dsf.machine.oracle import Oracle
from dsf.machine.timing import Timing
from dsf_ascend.isa import ISA

SIZE = 1 << 19  # bytes of main memory; the first half is read, the second written
CUBE = {"L1", "L0A", "L0B", "L0C", "BT", "FB"}

Shapes = dict[str, list[tuple[int, ...]]]
SQUARE, ROW = (16, 32), (16, 1)
SHAPES: Shapes = {
    "Mmad": [(16, 32), (16, 64), (64, 32), (32,)],
    "Mmad.fractal": [(2, 16, 16), (1, 4, 16, 16), (4, 2, 16, 16), (32,)],
    "Fixpipe.NZ": [(2, 16, 16), SQUARE],
    "Fixpipe.VQF322B8_PRE": [SQUARE, SQUARE, (32,)],
    "Fixpipe.VREQ8": [SQUARE, SQUARE, (32,)],
    "Fixpipe.VDEQF16": [SQUARE, SQUARE, (32,)],
    "DataCopy.ND2NZ": [(3, 16, 16), (16, 35)],
    "DataCopy.NZ2ND": [(16, 35), (3, 16, 16)],
    "DataCopyPad.GM2UB": [(16, 48), (16, 35)],
    "DataCopyPad.GM2L1": [(16, 48), (16, 35)],
    "DataCopyPad.UB2GM": [(16, 35), (16, 48)],
    "DataCopy.Gather": [(8, 16), (8, 16), (8, 1)],
    "DataCopy.Scatter": [(8, 16), (8, 16), (8, 1)],
    "LoadDataWithTranspose": [(32, 16), (16, 32)],
    "LoadData3D": [(20, 96), (1, 9, 8, 16)],
    "BlockReduce": [(16, 2), (16, 32)],
    "PairReduceSum": [(16, 16), (16, 32)],
    "WholeReduce": [ROW, SQUARE],
    "RepeatReduceSum": [ROW, SQUARE],
    "ReduceSum": [ROW, SQUARE], "ReduceMax": [ROW, SQUARE], "ReduceMin": [ROW, SQUARE], "Scalar.reduce": [ROW, SQUARE],
    "Transpose": [(16, 16), (16, 16)],
    "TransDataTo5HD": [(32, 16), (16, 32)],
    "Brcb": [(16, 16), (16, 1)],
    "Gatherb": [(16, 16), (8, 16), (16,)],
    "GatherMask.Mask": [(64,)] * 3,
    "GatherMask": [(16, 8), (16, 32)],
    "Sort32": [(4, 32, 2), (4, 32), (4, 32)],
    "MrgSort.2": [(24, 2), (16, 2), (8, 2)],
    "MrgSort.3": [(32, 2), (16, 2), (8, 2), (8, 2)],
    "MrgSort.4": [(40, 2), (16, 2), (8, 2), (8, 2), (8, 2)],
}  # fmt: skip
"""By the longest beginning of a name that is listed; all others take operands of one shape. 16-bit numbers."""

WINDOWS = {"kernel_h": 3, "kernel_w": 2, "stride_h": 2, "stride_w": 2, "right": 1, "top": 1, "bottom": 1}
SCALARS: dict[str, dict[str, Any]] = {
    "Mmad": {"accumulate": 1}, "Mmad.fractal": {"accumulate": 1, "m": 13, "k": 60, "n": 32},
    "Duplicate": {"value": 3}, "Scalar.fill": {"value": 3}, "InitConstValue": {"value": 3},
    "CreateVecIndex": {"start": 1, "step": 2}, "Scalar.iota": {"start": 1, "step": 2},
    "Fixpipe.QF322B8_PRE": {"scale": 4.0, "offset": 3, "relu": 1}, "Fixpipe.REQ8": {"scale": 0.01, "offset": -1},
    "Fixpipe.AtomicAdd": {}, "Fixpipe.DEQF16": {"scale": 0.5}, "Fixpipe.VQF322B8_PRE": {"offset": 1},
    "Fixpipe": {"relu": 1},
    "DataCopyPad.GM2": {"left": 2, "value": 1.5}, "LoadData3D": WINDOWS, "GatherMask": {"pattern": 4},
    "GatherMask.Mask": {}, "Adds": {"value": 3}, "Muls": {"value": 3}, "Maxs": {"value": 3}, "Mins": {"value": 3},
    "Shift": {"value": 2}, "CompareScalar": {"value": 1.5}, "Select.TensorScalar": {"value": 3},
    "LeakyRelu": {"value": 0.25}, "Axpy": {"value": -0.5}, "AddDeqRelu": {"scale": 0.25},
    "CastDeq": {"scale": 0.5, "offset": 7},
}  # fmt: skip
DTYPES = {
    "DataCopy.L12BT": ("float32", "float16"), "MulCast": ("int8", "float16"), "AddReluCast": ("int8", "float16"),
    "SubReluCast": ("int8", "float16"),
    "AddDeqRelu": ("float16", "int32"), "CastDeq": ("int8", "int16"), "Cast": ("float16", "float32"),
    "Fixpipe.QF322B8_PRE": ("int8", "float32"), "Fixpipe": ("float16", "float32"),
    "ReduceMax.Index": ("int64", "float32"),
}  # fmt: skip


def listed(table: dict[str, Any], name: str, default: Any) -> Any:
    known = [key for key in table if name.startswith(key)]
    return table[max(known, key=len)] if known else default


@define
class Writer:
    """Writes the program of one row: *fed* counts bytes of main memory that are read."""

    b: Builder
    fed: int = 0
    made: int = SIZE // 2
    room: dict[str, int] = field(factory=dict)

    def take(self, shape: tuple[int, ...], dtype: str, read: bool) -> Operand:
        """A window of main memory, of random numbers or of results."""
        nbytes = -(-torch.Size(shape).numel() * torch_dtype(dtype).itemsize // 512) * 512
        at, self.fed, self.made = (
            (self.fed if read else self.made),
            self.fed + nbytes * read,
            self.made + nbytes * (not read),
        )
        assert self.fed <= SIZE // 2
        assert self.made <= SIZE
        return self.b.gm(0, at, shape, dtype)

    def on(self, space: str, shape: tuple[int, ...], dtype: str) -> Operand:
        """A window of an on-chip memory that nobody has."""
        if space == "GM":
            return self.take(shape, dtype, True)
        at = self.room.get(space, 0)
        nbytes = torch.Size(shape).numel() * torch_dtype(dtype).itemsize
        self.room[space] = at + -(-nbytes // 512) * 512
        return self.b.on(space, at, shape, dtype)

    def do(self, name: str, *operands: Operand, **scalars: Any) -> None:
        self.b(name, *operands, **scalars)
        self.b("PipeBarrier", pipe="ALL")

    def fill(self, target: Operand) -> None:
        """Random numbers into *target*."""
        space, shape, dtype = target.space, target.shape, target.dtype
        if space == "GM":
            return
        if space in ("UB", "L1"):
            self.do(f"DataCopy.GM2{space}", target, self.take(shape, dtype, True))
        elif space == "L0C":
            kind = "int8" if dtype == "int32" else "float16"
            if len(shape) == 3:  # fractals: the same bytes as rows
                target = evolve(target, shape=(shape[0] * shape[1], shape[2]), stride=(shape[2], 1))
                shape = target.shape
            a, w = self.on("L0A", (shape[0], 32), kind), self.on("L0B", (32, shape[1]), kind)
            self.fill(a)
            self.fill(w)
            self.do("Mmad.s8" if kind == "int8" else "Mmad", target, a, w, accumulate=0)
        else:
            slab = self.on("L1", shape, dtype)
            self.fill(slab)
            self.do(f"DataCopy.L12{space}" if space in ("BT", "FB") else f"LoadData.L12{space}", target, slab)

    def show(self, source: Operand) -> None:
        """What *source* holds to main memory, as it is or as it acts."""
        space, shape, dtype = source.space, source.shape, source.dtype
        if space == "GM":
            return
        if space in ("UB", "L1"):
            self.do(f"DataCopy.{space}2GM", self.take(shape, dtype, False), source)
        elif space == "L0C":
            self.do("Fixpipe", self.take(shape, dtype, False), source)
        elif space == "BT":
            self._show_bias(source)
        elif space == "FB":
            result, tile = self.take((16, *shape), "int8", False), self.on("L0C", (16, *shape), "float32")
            self.fill(tile)
            self.do("Fixpipe.VQF322B8_PRE", result, tile, source, offset=0)
        else:
            self._show_factor(source)

    def _show_bias(self, bias: Operand) -> None:
        n = bias.shape[0]
        a, w, c = self.on("L0A", (16, 16), "float16"), self.on("L0B", (16, n), "float16"), None
        self.fill(a)
        self.fill(w)
        c = self.on("L0C", (16, n), "float32")
        self.do("Mmad.bias", c, a, w, bias, accumulate=0)
        self.show(c)

    def _show_factor(self, factor: Operand) -> None:
        left = factor.space == "L0A"
        m, k, n = (*factor.shape, 32) if left else (16, *factor.shape)
        other = self.on("L0B" if left else "L0A", (k, n) if left else (m, k), factor.dtype)
        self.fill(other)
        whole = factor.dtype == "int8"
        c = self.on("L0C", (m, n), "int32" if whole else "float32")
        pair = (factor, other) if left else (other, factor)
        self.do("Mmad.s8" if whole else "Mmad", c, *pair, accumulate=0)
        self.show(c)


def dtypes_of(row: Row) -> list[str]:
    """A dtype for each operand, of 16 bits where there is a choice."""
    pair = listed(DTYPES, row.name, None)
    found = []
    for place, (name, role) in enumerate(row.operands):
        wanted = pair[min(place, 1)] if pair and name in ("dst", "a", "b", "src") else "float16"
        choice = role.dtypes or (wanted,)
        found.append(wanted if wanted in choice else choice[0])
    if row.name == "DataCopy.L12FB":
        return ["float32", "float32"]
    return found


def program(row: Row, chip: Chip) -> Program:
    b = Builder("one", ISA, chip)
    b.param("x", "inout", SIZE)
    cube = any(CUBE & set(role.spaces) for _, role in row.operands)
    dtypes = dtypes_of(row)
    shapes = listed(SHAPES, row.name, None) or [
        (32,) if "BT" in role.spaces or "FB" in row.operands[0][1].spaces or "BT" in row.operands[0][1].spaces
        else SQUARE for _, role in row.operands
    ]  # fmt: skip
    with b.phase("AIC" if cube else "AIV"), b.nest(i=1):
        writer = Writer(b)
        operands = [
            writer.take(shape, dtype, False) if role.spaces[0] == "GM" and role.mode != "read"
            else writer.on(role.spaces[0], shape, dtype)
            for (_, role), shape, dtype in zip(row.operands, shapes, dtypes, strict=False)
        ]  # fmt: skip
        for operand, (name, _) in zip(operands, row.operands, strict=True):
            if name != "index":
                writer.fill(operand)
        for operand, (name, _) in zip(operands, row.operands, strict=True):
            if name == "index":
                b("CreateVecIndex" if operand.dtype == "int32" else "Scalar.iota", operand, start=0, step=0)
                b("PipeBarrier", pipe="ALL")
        writer.do(row.name, *operands, **listed(SCALARS, row.name, {}))
        writer.show(operands[0])
    return b.build()


def memory() -> torch.Tensor:
    """Bytes from 0 to 7: numbers small enough for every format that reads them (int4 as well), and none of them NaN."""
    torch.manual_seed(0)
    return torch.randint(0, 7, (SIZE,), dtype=torch.uint8)


def floats() -> torch.Tensor:
    """float16 numbers of the middle sizes; as float32 they are of the size of one as well."""
    torch.manual_seed(0)
    return (torch.rand(SIZE // 2) * 2 + 0.5).half().view(torch.uint8)


def runs_alike(row: Row, chip: Chip, start: torch.Tensor) -> bool:
    """Whether the instruction changed main memory; all planes must have changed it alike."""
    made = program(row, chip)
    ordering.check(made, ISA, chip)
    for exact in (False, True):
        arena, oracles = Arena(SIZE), start.clone()
        arena.bytes.copy_(start)
        machine = Functional(chip, ISA, arena, exact)
        machine.bind(machine.unroll(made), [0]).run()
        cycles = Oracle(chip, ISA, oracles, exact).run(made, [0])
        assert torch.equal(arena.bytes, oracles), exact
        assert [phase.cycles for phase in Timing(chip, ISA)(made).phases] == list(cycles)
    return not torch.equal(oracles, start)


RUNNING = [row for row in ISA.rows.values() if not row.synchronises and row.implements != "gather.block"]
"""All but the one whose index stands in main memory, which nothing here fills: products by experts run it."""


@pytest.mark.parametrize("row", RUNNING, ids=[row.name for row in RUNNING])
def test_every_instruction_runs_alike_on_all_planes(row: Row, chip: Chip) -> None:
    whole = any("int" in d or d == "bool" for d in dtypes_of(row))
    assert runs_alike(row, chip, memory() if whole else floats())
