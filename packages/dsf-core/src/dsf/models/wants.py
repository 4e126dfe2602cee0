"""What a model wants: the graph of one of its layers as intents, and how much of the whole step is understood."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, field, frozen

from dsf import errors
from dsf.intent.coverage import Coverage, coverage
from dsf.intent.expression import text
from dsf.intent.hints import Hints, OperandHint, hints
from dsf.intent.ir import Intent
from dsf.intent.tape import Region
from dsf.intent.text import dump
from dsf.models.capture import Part, Step, capture
from dsf.models.named import named
from dsf.segments import unit

if TYPE_CHECKING:
    import torch

__all__ = ["Listing", "Operand", "Row", "Wants", "layers_of", "wants"]


@frozen
class Operand:
    """A tensor of the graph: *value* is the number of the buffer that it lies in, counted from the layer's first. An
    input has a *hint* of how it is read and what its life is."""

    value: int
    region: Region
    hint: OperandHint | None = None

    def __str__(self) -> str:
        dtype = str(self.region.dtype).removeprefix("torch.")
        life = "" if self.hint is None else "*" if self.hint.constant else "+" if self.hint.grows else ""
        return f"%{self.value}{life}[{','.join(map(str, self.region.shape))}].{_SHORT.get(dtype, dtype)}"

    def to_json(self) -> dict[str, Any]:
        window = self.region.window
        dtype = str(window.dtype).removeprefix("torch.")
        plain = {"value": self.value, "shape": list(window.shape), "stride": list(window.stride),
                 "offset": window.offset, "dtype": dtype}  # fmt: skip
        return plain if self.hint is None else {**plain, **asdict(self.hint)}


_SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32"}


@frozen
class Row:
    """One intent of the graph; *scope* is the path of the module that asked for it, *targets* what torch recorded."""

    index: int
    kind: str
    attrs: dict[str, Any]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    group: str
    scope: str
    module: str
    targets: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index, "kind": self.kind, "attributes": self.attrs,
            "inputs": [operand.to_json() for operand in self.inputs],
            "outputs": [operand.to_json() for operand in self.outputs],
            "group": self.group or None, "scope": self.scope, "module": self.module, "operations": list(self.targets),
        }  # fmt: skip


@frozen(eq=False)
class Wants:
    """The answer of `wants`: *layer* is the one shown of *layers*, by the paths of their modules; *parts* are its own,
    *step_parts* those of the whole step."""

    model: str
    source: str
    parameters: int
    step: str
    batch: int
    length: int
    layers: tuple[str, ...]
    layer: str
    graph: tuple[Row, ...]
    coverage: Coverage
    parts: tuple[Part, ...] = field(repr=False)
    step_parts: tuple[Part, ...] = field(default=(), repr=False)

    @property
    def findings(self) -> tuple[Any, ...]:
        """What stayed opaque."""
        return self.coverage.opaque

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "model": self.model, "source": self.source, "parameters": self.parameters, "step": self.step,
            "batch": self.batch, "length": self.length, "layers": list(self.layers), "layer": self.layer,
            "graph": [row.to_json() for row in self.graph], "coverage": self.coverage.to_json(),
        }  # fmt: skip


@frozen(eq=False)
class Listing:
    """The graph of the layer in the text form of intents, which `dsf.intent.text.load` reads."""

    wants: Wants

    @property
    def findings(self) -> tuple[Any, ...]:
        """What stayed opaque."""
        return self.wants.findings

    @property
    def text(self) -> str:
        """A remark on what it is, then one intent a line, each segment with its own numbers of buffers."""
        found = self.wants
        where = f", layer {found.layer}" if found.layer else ""
        return "".join([f"# {found.model}, {found.step}{where}\n", *map(_text, found.parts)])

    def to_json(self) -> dict[str, Any]:
        """The text and all that the graph has."""
        return {**self.wants.to_json(), "text": self.text}


def _text(part: Part) -> str:
    """Equal layers share their intents: here each says the module that it is really from."""
    ops = part.segment.ops
    return dump([evolve(intent, scope=ops[intent.ops[-1]].scope, site=None) for intent in part.intents])


def wants(
    name: str,
    *,
    batch: int = 1,
    length: int = 128,
    decode: bool = False,
    layer: int = 0,
    dtype: torch.dtype | None = None,
    watch: Callable[[str], None] = lambda stage: None,
) -> Wants:
    """What the model called *name* wants in its prefill of *length* tokens or, with *decode*, in the step after it, and
    the graph of its layer number *layer*. No chip is needed and none may be enabled; nothing is computed."""
    watch("the model")
    given = named(name, dtype)
    parameters = sum(p.numel() for p in given.model.parameters())
    _check_length(name, given.model, length + decode)
    try:
        steps = capture(given.model, given.inputs, batch=batch, length=length, decode=decode, watch=watch)
    except errors.DsfError:
        raise
    except Exception as cause:
        raise errors.ModelError(
            "DSF-C019", f"{name}: its forward cannot be recorded ({type(cause).__name__}: {cause}); DSF calls it with "
            f"{'its own inputs' if given.inputs else 'inputs made from its configuration'}"
        ) from cause  # fmt: skip
    if decode and len(steps) < 2:
        raise errors.ModelError("DSF-C020", f"{name}: this model has no decode step; leave out --decode")
    step = steps[-1]
    layers = layers_of(step)
    if not 0 <= layer < len(layers):
        raise errors.ModelError(
            "DSF-C021", f"{name}: layer {layer} was asked for; its {step.name} has layers 0 to {len(layers) - 1} "
            f"({layers[0] or 'all of it'} to {layers[-1] or 'all of it'})"
        )  # fmt: skip
    shown = tuple(part for part in step.parts if _path(part) == layers[layer])
    return Wants(
        given.title, given.source, parameters, step.name, batch, length, layers, layers[layer], tuple(_rows(shown)),
        coverage((len(part.segment.ops), part.intents) for part in step.parts), shown, step.parts,
    )  # fmt: skip


def _check_length(name: str, model: Any, length: int) -> None:
    """A table of positions is read at every token: beyond its end there is no row, and without numbers nobody sees."""
    from torch import nn

    config = getattr(model, "config", None)
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    tables = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    if getattr(model, "main_input_name", "") == "input_ids" and most in tables and length > most:
        raise errors.ModelError(
            "DSF-C022", f"{name}: {length} tokens; its positions end at {most}; ask for fewer with --seq-len"
        )


def layers_of(step: Step) -> tuple[str, ...]:
    """The repeated modules of *step* in order of first use; the one empty path if it has none."""
    paths = dict.fromkeys(_path(part) for part in step.parts)
    return tuple(path for path in paths if path) or ("",)


def _path(part: Part) -> str:
    return unit(part.segment.ops[0].scope.path)


def _rows(parts: tuple[Part, ...]) -> Iterator[Row]:
    numbers: dict[tuple[int, int], int] = {}  # by tape and buffer
    count = 0
    for part in parts:
        known = hints(part.intents, part.segment.tape.buffers)
        for intent, hint in zip(part.intents, known, strict=True):
            yield _row(count, part, intent, hint, numbers)
            count += 1


def _row(index: int, part: Part, intent: Intent, hint: Hints, numbers: dict[tuple[int, int], int]) -> Row:
    def operand(region: Region, how: OperandHint | None = None) -> Operand:
        key = id(part.segment.whole), part.segment.buffers[region.buffer]
        return Operand(numbers.setdefault(key, len(numbers)), region, how)

    ops = [part.segment.ops[number] for number in intent.ops]
    group = f"{intent.group.kind} {intent.group.role}" if intent.group else ""
    return Row(
        index, intent.kind, _attributes(intent), tuple(map(operand, intent.inputs, hint.inputs)),
        tuple(map(operand, intent.outputs)), group,
        ops[-1].scope.path, ops[-1].scope.module, tuple(op.target for op in ops),
    )  # fmt: skip


def _attributes(intent: Intent) -> dict[str, Any]:
    """The attributes as plain data; of an opaque intent the operator alone, whose arguments are operands."""
    if intent.kind == "opaque":
        return {"target": str(intent.attr("target"))}
    return {name: text(value) if name == "expr" else _plain(value) for name, value in intent.attrs}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value).removeprefix("torch.")
