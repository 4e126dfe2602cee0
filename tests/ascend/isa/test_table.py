"""The instruction set in the vendor's own words: which engine has what, and where it is known from."""

from __future__ import annotations

import pytest
import torch

from dsf.hdl import Chip
from dsf.isa.primitives import ARG_REDUCTIONS, POINTWISE, REDUCTIONS
from dsf_ascend.isa import ISA


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        (
            "MTE1",
            {
                "LoadData.L12L0A",
                "LoadData.L12L0B",
                "DataCopy.L12BT",
                "LoadDataWithTranspose.L0A",
                "LoadDataWithTranspose.L0B",
                "LoadData3D.L0A",
                "LoadData3D.L0B",
                "InitConstValue.L0A",
                "InitConstValue.L0B",
            },
        ),
        (
            "MTE2",
            {
                "DataCopy.GM2L1",
                "DataCopy.GM2L1.Indexed",
                "DataCopy.GM2UB",
                "DataCopy.Gather",
                "DataCopyPad.GM2UB",
                "DataCopyPad.GM2L1",
                "DataCopy.ND2NZ",
                "InitConstValue.L1",
            },
        ),
        (
            "MTE3",
            {
                "DataCopy.UB2GM",
                "DataCopy.Scatter",
                "DataCopy.L12GM",
                "DataCopyPad.UB2GM",
                "DataCopy.NZ2ND",
                "DataCopy.AtomicAdd",
                "DataCopy.AtomicMax",
                "DataCopy.AtomicMin",
            },
        ),
        (
            "M",
            {
                f"Mmad{numbers}{bias}"
                for numbers in ("", ".s8", ".s4", ".hf32", ".hf32.away", ".fractal")
                for bias in ("", ".bias")
            },
        ),
        (
            "FIX",
            {
                "Fixpipe",
                "Fixpipe.NZ",
                "Fixpipe.AtomicAdd",
                "Fixpipe.QF322B8_PRE",
                "Fixpipe.VQF322B8_PRE",
                "Fixpipe.REQ8",
                "Fixpipe.VREQ8",
                "Fixpipe.DEQF16",
                "Fixpipe.VDEQF16",
                "DataCopy.L12FB",
            },
        ),
        ("", {"SetFlag", "WaitFlag"}),
    ],
)
def test_each_engine_has_its_instructions(engine: str, names: set[str]) -> None:
    assert {row.name for row in ISA.rows.values() if row.engine == engine} == names


def test_vectors_have_the_guides_names() -> None:
    names = {row.name for row in ISA.rows.values() if row.engine == "V"}
    assert {"Add", "Mul", "Max", "Abs", "Exp", "Ln", "Sqrt", "Div", "Rsqrt", "Cast", "Select", "ReduceSum"} <= names
    assert names >= {
        "Adds", "Muls", "Maxs", "Mins", "Relu", "LeakyRelu", "Not", "And", "Or", "ShiftLeft", "ShiftRight", "Axpy",
        "MulAddDst", "FusedMulAdd", "FusedMulAddRelu", "MulCast", "AddReluCast", "SubReluCast", "AddRelu", "SubRelu",
        "CastDeq", "AddDeqRelu", "GatherMask", "PairReduceSum", "RepeatReduceSum", "Transpose", "TransDataTo5HD",
        "Duplicate", "Brcb", "Gather", "Gatherb", "Sort32", "MrgSort.2", "MrgSort.4", "Copy", "CreateVecIndex",
        *(f"{extent}Reduce{kind}" for extent in ("Whole", "Block") for kind in ("Sum", "Max", "Min")),
        *(f"Cast.{mode}" for mode in ("RINT", "FLOOR", "CEIL", "ROUND", "TRUNC", "ODD")),
    }  # fmt: skip
    assert not any(name.startswith("Scalar.") for name in names)


def test_the_scalar_unit_serves_every_primitive() -> None:
    served = {row.implements for row in ISA.rows.values() if row.engine == "S" and not row.barrier}
    assert served == {
        *POINTWISE,
        *(f"reduce.{r}" for r in (*REDUCTIONS, *ARG_REDUCTIONS)),
        *("take", "put", "put.add", "order.ascending", "order.descending"),
        "fill",
        "iota",
        "scan.cumsum",
    }


def test_every_row_has_an_engine_a_source_and_a_summary(chip: Chip) -> None:
    for row in ISA.rows.values():
        assert (row.engine in chip.engines) != (row.flag is not None), row.name
        assert row.summary, row.name
        assert row.source, row.name


def test_data_moves_only_along_paths_of_the_chip(chip: Chip) -> None:
    moving = [row for row in ISA.rows.values() if row.engine and chip.engines[row.engine].kind == "dma"]
    assert len(moving) == 35
    for row in moving:
        (_, dst), *sources = row.operands
        for space in dst.spaces if sources else ():  # InitConstValue has no source
            assert chip.paths[sources[0][1].spaces[0], space].engine == row.engine, row.name


def test_the_printed_table_lists_every_instruction() -> None:
    title, *lines = str(ISA).splitlines()
    assert title == f"ascend-2201: {len(ISA.rows)} instructions"
    assert [line.split()[0] for line in lines] == list(ISA.rows)
    assert "  Mmad                     M      c:L0C, a:L0A, b:L0B" in str(ISA)


def test_the_inputs_of_the_cube_are_held_wide() -> None:
    assert ISA.wide == {"L0A", "L0B"}


def test_int8_products_are_exact() -> None:
    """-128 x -128 summed 1024 times is 2^24: beyond float32's whole numbers if a 1 is added."""
    a, b = torch.full((1, 1025), -128, dtype=torch.int8), torch.full((1025, 1), -128, dtype=torch.int8)
    a[0, 1024], b[1024, 0] = 1, 1
    c = torch.zeros(1, 1, dtype=torch.int32)
    assert ISA["Mmad.s8"].semantics(c, a, b, accumulate=0).item() == 2**24 + 1
    assert ISA["Mmad.s8"].semantics(c + 5, a, b, accumulate=1).item() == 2**24 + 6
    fast = ISA["Mmad.s8"].fast
    assert fast is not None
    fast(c, a, b, accumulate=0)
    assert c.item() == 2**24 + 1


def test_a_bias_starts_the_accumulator_and_is_left_out_afterwards() -> None:
    c, bias = torch.full((2, 2), 100.0), torch.tensor([1.0, 2.0])
    a, b = torch.ones(2, 3), torch.ones(3, 2)
    mmad = ISA["Mmad.bias"].semantics
    assert mmad(c, a, b, bias, accumulate=0).tolist() == [[4.0, 5.0], [4.0, 5.0]]
    assert mmad(c, a, b, bias, accumulate=1).tolist() == [[103.0, 103.0], [103.0, 103.0]]


def test_a_scatter_writes_the_rows_it_is_told_and_no_others() -> None:
    table, rows, index = torch.zeros(5, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[3], [0]])
    result = ISA["DataCopy.Scatter"].semantics(table, rows, index)
    assert result.tolist() == [[3.0, 4.0], [0.0, 0.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]
    assert table.count_nonzero() == 0


def test_a_gather_takes_the_rows_it_is_told() -> None:
    table, found = torch.arange(10.0).view(5, 2), torch.zeros(3, 2)
    result = ISA["DataCopy.Gather"].semantics(found, table, torch.tensor([[4], [0], [4]]))
    assert result.tolist() == [[8.0, 9.0], [0.0, 1.0], [8.0, 9.0]]
