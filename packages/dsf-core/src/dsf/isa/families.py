"""Whole families of rows made from the primitives: what vector, scalar and copy engines have, under names of choice.

A vendor's module names its instructions (`{"add": "Add", "log": "Ln"}`) and says which dtypes they take; the meaning
and the in-place form come from the primitive, the cycles from the laws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import torch

from dsf import errors
from dsf.isa import laws
from dsf.isa.primitives import ARG_REDUCTIONS, POINTWISE, REDUCTIONS, WITH_SCALAR, Primitive
from dsf.isa.rules import fits_written, one_dtype, one_shape, reduced_shape, scalars_fit, whole_steps
from dsf.isa.table import Isa, Row, Rule, accumulate, read, write
from dsf.numerics.formats import by_dtype
from dsf.numerics.rounding import Rounding

__all__ = [
    "add_block_gather", "add_copies", "add_indexed", "add_picks", "add_pointwise", "add_reductions",
    "add_scalar_forms", "add_scans", "add_sorts", "add_vector_moves", "in_place", "in_range", "one_by_one",
]  # fmt: skip

OPERANDS = ("a", "b", "c")


def add_pointwise(
    isa: Isa, engine: str, space: str, names: Mapping[str, str], dtypes: Iterable[str],
    rules: Iterable[Rule] = (), source: str = "",
) -> None:  # fmt: skip
    """One row `names[primitive]` per primitive: dst = primitive(a, b, c), all in *space*, in those of *dtypes* on which
    the primitive is defined. `where` selects by a bool."""
    formats = tuple(dtypes)
    for key, name in names.items():
        primitive = POINTWISE[key]
        taken = tuple(d for d in formats if primitive.accepts(d))
        result = write(space, dtypes=("bool",) if primitive.predicate else taken)
        sources = {n: read(space, dtypes=taken) for n in OPERANDS[: primitive.arity]}
        if key == "where":
            sources["a"] = read(space, dtypes=("bool",))
        mask = {"where": 1}.get(key, 0 if primitive.predicate else None)
        alike = one_dtype(*(place for place in range(1 + primitive.arity) if place != mask))
        isa.add(
            Row(name, engine, laws.elementwise, (("dst", result), *sources.items()), _drop_first(primitive.meaning),
                f"dst = {key}({', '.join(sources)})", _out_form(primitive), (one_shape, alike, *rules), key, None, None,
                source, primitive.opclass, _out_form(primitive))
        )  # fmt: skip


def add_scalar_forms(
    isa: Isa, engine: str, space: str, names: Mapping[str, str], dtypes: Iterable[str],
    rules: Iterable[Rule] = (), source: str = "",
) -> None:  # fmt: skip
    """One row `names[primitive]` per primitive of two operands: dst = primitive(a, value), *value* being one number of
    the operands' format, which the instruction itself holds."""
    formats = tuple(dtypes)
    for key, name in names.items():
        primitive = WITH_SCALAR[key]
        taken = tuple(d for d in formats if primitive.accepts(d))
        roles = (
            ("dst", write(space, dtypes=("bool",) if primitive.predicate else taken)), ("a", read(space, dtypes=taken))
        )  # fmt: skip
        alike = () if primitive.predicate else (one_dtype(0, 1),)
        fast = _scalar_fast(primitive)
        isa.add(
            Row(name, engine, laws.elementwise, roles, _scalar_semantics(primitive), f"dst = {key}(a, value)", fast,
                (one_shape, *alike, scalars_fit, *rules), f"{key}.scalar", None, None, source, primitive.opclass, fast)
        )  # fmt: skip


def _scalar_semantics(primitive: Primitive) -> Callable[..., torch.Tensor]:
    meaning = primitive.meaning

    def semantics(dst: torch.Tensor, a: torch.Tensor, value: float) -> torch.Tensor:
        return meaning(a, value)

    return semantics


def _scalar_fast(primitive: Primitive) -> Callable[..., Any]:
    function = primitive.out
    assert function is not None, "every primitive with a scalar has a form in place"

    def fast(dst: torch.Tensor, a: torch.Tensor, value: float) -> None:
        function(a, value, out=dst)

    return fast


def add_reductions(
    isa: Isa, engine: str, space: str, names: Mapping[str, str], dtypes: Iterable[str], source: str = "",
    rules: Iterable[Rule] = (),
) -> None:  # fmt: skip
    """Rows that reduce the last dimension of a to size 1; the arg- kind writes int64 indices."""
    formats = tuple(dtypes)
    for key, name in names.items():
        indices = key in ARG_REDUCTIONS
        primitive = ARG_REDUCTIONS[key] if indices else REDUCTIONS[key]
        taken = tuple(d for d in formats if primitive.accepts(d))
        checks = (reduced_shape, *rules) if indices else (reduced_shape, one_dtype(0, 1), *rules)
        result = write(space, dtypes=("int64",) if indices else taken)
        roles = (("dst", result), ("a", read(space, dtypes=taken)))
        isa.add(
            Row(name, engine, laws.reduction, roles, _drop_first(primitive.meaning), f"dst = {key} of each row of a",
                _out_form(primitive), checks, f"reduce.{key}", None, None, source, primitive.opclass,
                _out_form(primitive))
        )  # fmt: skip


def add_scans(
    isa: Isa, engine: str, space: str, names: Mapping[str, str], dtypes: Iterable[str], source: str = ""
) -> None:
    """Rows whose result has a running value for every element of a row, in those of *dtypes* that are numbers."""
    taken = tuple(d for d in dtypes if d != "bool")
    roles = (("dst", write(space, dtypes=taken)), ("a", read(space, dtypes=taken)))
    for key, name in names.items():
        isa.add(
            Row(name, engine, laws.elementwise, roles, _SCANS[key], f"dst = {key} along each row of a", None,
                (one_shape, one_dtype(0, 1)), f"scan.{key}", None, None, source, "reduce",
                in_place(_SCANS[key]))
        )  # fmt: skip


def _running_sum(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(a, -1, dtype=a.dtype)


_SCANS: dict[str, Callable[..., torch.Tensor]] = {"cumsum": _running_sum}


INDICES = ("int64", "int32")
STORED = ("float16", "float32", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
"""What is moved and compared an element at a time."""


def add_picks(isa: Isa, engine: str, space: str, names: Mapping[str, str], source: str = "") -> None:
    """Rows that take numbers of a row by index, or put them there (take, put, put.add): the source, or
    what is written, may be longer than the index."""
    for key, name in names.items():
        semantics, text = _PICKS[key]
        first, second = (write, "a") if key == "take" else (accumulate, "src")
        roles = (("dst", first(space, dtypes=STORED)), (second, read(space, dtypes=STORED)),
                 ("index", read(space, dtypes=INDICES)))  # fmt: skip
        law, checks = laws.over(2), (one_dtype(0, 1), _one_index_each(0 if key == "take" else 1))
        isa.add(
            Row(name, engine, law, roles, semantics, text, None, checks, key, None, None, source, "default",
                in_place(semantics))
        )  # fmt: skip


def _one_index_each(place: int) -> Rule:
    def rule(chip: Any, ins: Any) -> str | None:
        shapes = [o.shape for o in ins.operands]
        if shapes[place] != shapes[2]:
            return f"{shapes[place]} takes as many indices, not {shapes[2]}"
        return None if shapes[0][:-1] == shapes[1][:-1] else f"rows of {shapes[0]} and of {shapes[1]} differ"

    rule.__doc__ = f"As many indices as numbers in operand {place + 1}; all have the same rows."
    return rule


def _take(dst: torch.Tensor, a: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    in_range(index, a.shape[-1])
    return torch.gather(a, -1, index.long())


def _put(dst: torch.Tensor, src: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    in_range(index, dst.shape[-1])
    return dst.scatter(-1, index.long(), src)


def _put_add(dst: torch.Tensor, src: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    in_range(index, dst.shape[-1])
    return dst.scatter_add(-1, index.long(), src)


_PICKS: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "take": (_take, "dst[i] = a[index[i]] in each row; an index out of range is an error"),
    "put": (_put, "dst[index[i]] = src[i] in each row; the last one wins"),
    "put.add": (_put_add, "dst[index[i]] += src[i] in each row, one after the other"),
}


def add_sorts(isa: Isa, engine: str, space: str, names: Mapping[str, str], source: str = "") -> None:
    """Rows that say in which order the numbers of each row stand (order.ascending, order.descending)."""
    for key, name in names.items():
        semantics = _ordering(key == "order.descending")
        roles = (("dst", write(space, dtypes=("int32",))), ("a", read(space, dtypes=STORED)))
        text = f"dst = places of each row's numbers, {key.removeprefix('order.')}; equal ones keep their order, NaN is "
        isa.add(
            Row(name, engine, laws.sorting, roles, semantics, f"{text}the largest", None, (one_shape,), key, None, None,
                source, "default", in_place(semantics))
        )  # fmt: skip


def _ordering(descending: bool) -> Callable[..., torch.Tensor]:
    def semantics(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.sort(a, dim=-1, descending=descending, stable=True)[1].to(torch.int32)

    return semantics


def add_vector_moves(
    isa: Isa, engine: str, space: str, names: Mapping[str, str], dtypes: Iterable[str], source: str = "",
    rules: Iterable[Rule] = (),
) -> None:  # fmt: skip
    """cast (also copies and broadcasts), fill and iota rows within *space*; only numbers can be stepped."""
    formats = tuple(dtypes)
    forms: dict[str, tuple[Any, Any, Any, str, str, int]] = {
        "cast": (_cast, _copy, _copy, "dst = a in dst's dtype, rounded to nearest even", "cast", 1),
        "fill": (_fill, _fill_fast, _fill_fast, "dst = value everywhere", "add", 0),
        "iota": (_iota, _iota_fast, _iota_lanes, "dst = start + step * position", "add", 0),
    }
    for key, name in names.items():
        semantics, fast, lanes, summary, opclass, arity = forms[key]
        taken = tuple(d for d in formats if d != "bool" or key != "iota")
        checks = (one_shape, *{"iota": (whole_steps,), "fill": (fits_written,)}.get(key, ()), *rules)
        roles = [("dst", write(space, dtypes=taken))] + [("a", read(space, dtypes=taken))] * arity
        isa.add(
            Row(name, engine, laws.elementwise, tuple(roles), semantics, summary, fast, checks, key, None, None,
                source, opclass, lanes)
        )  # fmt: skip


def add_copies(
    isa: Isa, engine: str, source_space: str, target_space: str, name: str,
    implements: str = "", source: str = "", rules: Iterable[Rule] = (), converts: bool = False,
) -> None:  # fmt: skip
    """dst = src along one data path, any strides: same bytes, or with *converts* rounded to dst's dtype on the way."""
    roles = (("dst", write(target_space)), ("src", read(source_space)))
    text = f"dst in {target_space} = src in {source_space}" + (", rounded to dst's dtype" if converts else "")
    checks = (one_shape, *rules) if converts else (one_shape, one_dtype(0, 1), *rules)
    isa.add(
        Row(name, engine, laws.stream, roles, _move, text, _copy, checks, implements or None, None, None, source,
            lanes=_copy)
    )  # fmt: skip


def add_indexed(isa: Isa, engine: str, main: str, space: str, gather: str, scatter: str, source: str = "") -> None:
    """Rows of main memory by index: the index is read from *space*, each row has an address of its own."""
    index = read(space, dtypes=INDICES)
    isa.add(
        Row(gather, engine, laws.indexed, (("dst", write(space)), ("table", read(main)), ("index", index)),
            _gather, "dst[i] = table[index[i]]; an index out of range is an error", None, (one_dtype(0, 1),), "gather",
            None, None, source)
    )  # fmt: skip
    if scatter:
        isa.add(
            Row(scatter, engine, laws.indexed, (("table", accumulate(main)), ("src", read(space)), ("index", index)),
                _scatter, "table[index[i]] = src[i]; the last one wins", _scatter_fast, (one_dtype(0, 1),), "scatter",
                None, None, source)
        )  # fmt: skip


def add_block_gather(isa: Isa, engine: str, main: str, space: str, name: str, source: str = "") -> None:
    """One block of a table in main memory, its number read from main memory by the engine's own addressing."""
    roles = (("dst", write(space)), ("table", read(main)), ("index", read(main, dtypes=("int32",))))
    isa.add(
        Row(name, engine, laws.indexed, roles, _gather, "dst = table[index]; an index out of range is an error", None,
            (one_dtype(0, 1), _one_index), "gather.block", None, None, source)
    )  # fmt: skip


def _one_index(chip: Any, ins: Any) -> str | None:
    """One index, and the result has the shape of one block."""
    dst, table, index = (o.shape for o in ins.operands)
    return None if index == (1,) and table[1:] == dst else f"{dst} of {table} by {index}; expected one block by (1)"


def _drop_first(meaning: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def semantics(dst: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        return meaning(*sources)

    return semantics


def _out_form(primitive: Primitive) -> Callable[..., Any] | None:
    function = primitive.out
    if function is None:
        return None

    def fast(dst: torch.Tensor, *sources: torch.Tensor) -> None:
        function(*sources, out=dst)

    return fast


def in_place(semantics: Callable[..., torch.Tensor], rounding: Rounding | None = None) -> Callable[..., Any]:
    """The form in place of semantics that count dimensions from the last: for one core, and for several in lockstep."""

    def fast(dst: torch.Tensor, *sources: torch.Tensor, **scalars: Any) -> None:
        value = semantics(dst, *sources, **scalars)
        dst.copy_(rounding(value, by_dtype(dst.dtype).name) if rounding is not None else value)

    return fast


def one_by_one(fast: Callable[..., Any]) -> Callable[..., Any]:
    """The form for lanes of an instruction that only works on one core at a time."""

    def lanes(*operands: torch.Tensor, **scalars: Any) -> None:
        for lane in zip(*operands, strict=True):
            fast(*lane, **scalars)

    return lanes


def _move(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return src


def _cast(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return a


def _copy(dst: torch.Tensor, src: torch.Tensor) -> None:
    dst.copy_(src)


def _fill(dst: torch.Tensor, value: float) -> torch.Tensor:
    return torch.full_like(dst, value)


def _fill_fast(dst: torch.Tensor, value: float) -> None:
    dst.fill_(value)


def _iota(dst: torch.Tensor, start: float, step: float) -> torch.Tensor:
    return _ramp(dst.shape, dst.dtype, step) + start


def _iota_fast(dst: torch.Tensor, start: float, step: float) -> None:
    torch.add(_ramp(dst.shape, dst.dtype, step), start, out=dst)


def _iota_lanes(dst: torch.Tensor, start: float, step: float) -> None:
    torch.add(_ramp(dst.shape[1:], dst.dtype, step).expand(dst.shape), start, out=dst)


@lru_cache(maxsize=4096, typed=True)  # 1 and 1.0 make other ramps: whole numbers are stepped exactly
def _ramp(shape: tuple[int, ...], dtype: torch.dtype, step: float) -> torch.Tensor:
    """0, step, 2 * step, ... in *shape*."""
    return (torch.arange(prod(shape), dtype=dtype) * step).view(shape)


def _gather(dst: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table[in_range(index, table.shape[0])].view(dst.shape)


def in_range(index: torch.Tensor, rows: int) -> torch.Tensor:
    """The numbers of *index*, flat; a RowError for the first that is no row of a table of *rows*."""
    flat = index.reshape(-1).long()
    strays = ((flat < 0) | (flat >= rows)).nonzero()
    if strays.numel():
        at = int(strays[0])
        raise errors.RowError(
            "DSF-X030",
            f"index {flat[at].item()} (number {at} of {flat.numel()}) is outside a table of {rows} rows; "
            f"expected 0 to {rows - 1}",
        )
    return flat


def _scatter(table: torch.Tensor, src: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    result = table.clone()
    result[in_range(index, table.shape[0])] = src.view(-1, *table.shape[1:])
    return result


def _scatter_fast(table: torch.Tensor, src: torch.Tensor, index: torch.Tensor) -> None:
    table[in_range(index, table.shape[0])] = src.view(-1, *table.shape[1:])
