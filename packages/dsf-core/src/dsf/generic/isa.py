"""An instruction set for any chip, from its HDL: neutral names, one row for each engine, data path and primitive.

A chip that has no plugin needs a vector engine with a core-scope memory that main memory can be copied into and out of;
a matrix engine as well, with an accumulator that it can be copied out of. What is missing is simply not served, and
what needs it goes to the host.
"""

from __future__ import annotations

from functools import lru_cache

from attrs import frozen

from dsf import errors
from dsf.hdl import Chip, Engine, Path, Rule
from dsf.isa import Isa
from dsf.isa.families import (
    add_block_gather,
    add_copies,
    add_indexed,
    add_picks,
    add_pointwise,
    add_reductions,
    add_scans,
    add_sorts,
    add_vector_moves,
)  # fmt: skip
from dsf.isa.laws import fixed
from dsf.isa.primitives import ARG_REDUCTIONS, POINTWISE, REDUCTIONS
from dsf.isa.products import INT4, Product, WholeProduct, add_matrix
from dsf.numerics import by_name
from dsf.numerics.quantise import in_range, quantise

__all__ = ["Memories", "isa", "memories"]

SOURCE = "derived from the HDL"


@frozen
class Memories:
    """The on-chip memories that generic works in: *scratch* for vectors and matrix operands, *acc* for results."""

    main: str
    scratch: str
    acc: str | None


def memories(chip: Chip) -> Memories:
    """Which memories of *chip* serve as scratch and accumulator: the largest core memory that main memory reaches both
    ways, and the largest other one from which results get to main memory."""
    main = chip.main_memory.name
    own = [m for m in chip.memories.values() if m.scope == "core"]
    both = [m for m in own if (main, m.name) in chip.paths and (m.name, main) in chip.paths]
    vector_cores = {core for e in chip.engines.values() if e.kind == "vector" for core in e.core}
    scratch = max((m for m in both if m.core in vector_cores), key=lambda m: m.nbytes, default=None)
    if scratch is None:
        raise errors.HdlError(
            "DSF-H020",
            f"{chip.name}: generic needs a core memory beside a vector engine, with paths from and to {main}; "
            f"the HDL has paths {', '.join(f'{a}->{b}' for a, b in chip.paths)}",
        )
    outs = [m for m in own if m.name != scratch.name and (m.name, main) in chip.paths and m.core == scratch.core]
    acc = max(outs, key=lambda m: m.nbytes, default=None)
    return Memories(main, scratch.name, acc.name if acc else None)


def _engine(chip: Chip, kind: str, core: str | None) -> Engine | None:
    return next((e for e in chip.engines.values() if e.kind == kind and (core is None or core in e.core)), None)


@lru_cache
def isa(chip: Chip) -> Isa:
    """The instruction set that *chip*'s HDL implies."""
    places = memories(chip)
    table = Isa(f"generic({chip.name})")
    core = chip.memories[places.scratch].core
    for path in chip.paths.values():
        role = _role(path, places)
        name, converts = f"copy.{path.source}.{path.target}", places.acc in (path.source, path.target)
        add_copies(table, path.engine, path.source, path.target, name, role, SOURCE, converts=converts)
    _add_gathers(table, chip, places)
    vector, scalar, matrix = (_engine(chip, kind, core) for kind in ("vector", "scalar", "matrix"))
    if vector is not None:
        _add_engine(table, vector.name, "v", places.scratch, _formats(chip, "native"))
    if scalar is not None:
        add_scans(
            table, scalar.name, places.scratch, {"cumsum": "s.cumsum"}, _formats(chip, "native", "scalar"), SOURCE
        )
        _add_engine(table, scalar.name, "s", places.scratch, _formats(chip, "native", "scalar"))
        add_picks(table, scalar.name, places.scratch, {key: f"s.{key}" for key in ("take", "put", "put.add")}, SOURCE)
        add_sorts(table, scalar.name, places.scratch, {key: f"s.{key}" for key in SORTS}, SOURCE)
    if matrix is not None and places.acc is not None:
        _add_products(table, chip, places, matrix.name)
    table.add_flags(fixed(0), SOURCE)
    return table


def _add_products(table: Isa, chip: Chip, places: Memories, engine: str) -> None:
    """A product for each accumulator, on all formats that torch has and that are summed there, and one for each format
    that torch only stores."""
    native = {d: rule for d, rule in chip.numerics.dtypes.items() if rule.matrix == "native"}
    assert places.acc is not None
    where = places.acc, places.scratch, places.scratch
    own = {d: rule.accumulate for d, rule in native.items() if by_name(d).is_stored_as_itself}
    for acc in dict.fromkeys(own.values()):
        name = "matmul" if acc == "float32" else f"matmul.{acc}"
        add_matrix(table, engine, name, *where, [d for d, a in own.items() if a == acc], acc, source=SOURCE)
    for d, rule in native.items():
        if d not in own:
            stored = str(by_name(d).dtype).removeprefix("torch.")
            add_matrix(
                table, engine, f"matmul.{d}", *where, [stored], rule.accumulate, product=_product(d, rule), form=d,
                implements=f"matmul.{d}", source=SOURCE,
            )  # fmt: skip


def _product(form: str, rule: Rule) -> Product:
    """The product of numbers that torch stores in a wider format: int4 is checked, a shorter float32 is rounded."""
    if by_name(form).kind == "int":
        return WholeProduct(lambda x: in_range(x, form), longest=INT4)
    return Product(lambda x: quantise(x, form, rule.rounding, rule.overflow == "saturate", rule.subnormals))


def _role(path: Path, places: Memories) -> str:
    """What a copy is for, in the kernels' vocabulary."""
    roles = {
        (places.main, places.scratch): "load",
        (places.scratch, places.main): "store",
        (places.acc, places.main): "store.matrix",
        (places.main, places.acc): "load.acc",
    }
    return roles.get((path.source, path.target), "")


def _add_gathers(table: Isa, chip: Chip, places: Memories) -> None:
    """Rows of main memory by index: in on one engine, out on the other."""
    inbound, outbound = (
        chip.paths[path].engine for path in ((places.main, places.scratch), (places.scratch, places.main))
    )
    add_indexed(table, inbound, places.main, places.scratch, "gather", "", SOURCE)
    add_block_gather(table, inbound, places.main, places.scratch, "gather.block", SOURCE)
    out = Isa("out")
    add_indexed(out, outbound, places.main, places.scratch, "gather", "scatter", SOURCE)
    table.add(out["scatter"])


def _add_engine(table: Isa, engine: str, prefix: str, space: str, dtypes: tuple[str, ...]) -> None:
    """All primitives on one engine, for the formats that it computes."""
    stored = (*dtypes, *(d for d in STORED if d not in dtypes))
    add_pointwise(table, engine, space, {key: f"{prefix}.{key}" for key in POINTWISE}, dtypes, source=SOURCE)
    names = {key: f"{prefix}.reduce.{key}" for key in (*REDUCTIONS, *ARG_REDUCTIONS)}
    add_reductions(table, engine, space, names, dtypes, SOURCE)
    add_vector_moves(table, engine, space, {key: f"{prefix}.{key}" for key in ("fill", "iota")}, dtypes, SOURCE)
    add_vector_moves(table, engine, space, {"cast": f"{prefix}.cast"}, stored, SOURCE)


SORTS = ("order.ascending", "order.descending")
STORED = ("float16", "float32", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")


def _formats(chip: Chip, *ways: str) -> tuple[str, ...]:
    return tuple(dtype for dtype, rule in chip.numerics.dtypes.items() if rule.vector in ways)
