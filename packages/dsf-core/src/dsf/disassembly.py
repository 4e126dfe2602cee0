"""A program laid open: read from a file or written by a chip's own kernels, checked, listed, and timed line by line."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from dsf import errors, units
from dsf.hdl import Chip, weakest
from dsf.intent.ir import Intent, attributes
from dsf.intent.tape import Region, Window
from dsf.isa import Instruction, Program
from dsf.isa.assembly import parse, places
from dsf.isa.binary import MAGIC, decode, encode
from dsf.isa.crew import crew_of
from dsf.isa.program import contiguous, known_dtype, torch_dtype
from dsf.isa.verify import verify
from dsf.kernels.choose import Chooser
from dsf.kernels.target import Target
from dsf.ledger import device_numbers
from dsf.machine.ordering import check
from dsf.machine.timing import KernelTime, Timing
from dsf.plugins import View

__all__ = ["SHAPES", "Disassembly", "Line", "disassemble", "emitted", "read", "read_with_places", "write"]

MOST_BYTES = 64 << 20  # a program of a hundred thousand instructions has a tenth of that


@frozen
class Line:
    """One line of the listing. *cycles* on its engine and *runs*, over all blocks and loops, of an instruction."""

    number: int
    depth: int
    text: str
    cycles: int | None = None
    runs: int | None = None


@frozen
class Disassembly:
    """A program of *chip*: its lines, what breaks a rule, and its predicted time where nothing does.

    *kernel* is who wrote it and why, where it came from the chip's library; *counted*: whether lines have cycles. Of
    the *time*, *origin* is the weakest of the numbers that it depends on, and *cores* are those of each phase that get
    blocks, of how many.
    """

    chip: str
    isa: str
    program: Program
    kernel: str | None
    counted: bool
    lines: tuple[Line, ...]
    findings: tuple[str, ...]
    time: KernelTime | None
    origin: str | None = None
    cores: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "chip": self.chip,
            "isa": self.isa,
            "program": self.program.name,
            "kernel": self.kernel,
            "params": [{"name": p.name, "role": p.role, "bytes": p.nbytes} for p in self.program.params],
            "lines": [self._line(line) for line in self.lines],
            "findings": list(self.findings),
            "time": None if self.time is None else self._time(self.time),
        }

    def _time(self, time: KernelTime) -> dict[str, Any]:
        phases = zip(time.phases, self.cores, strict=True)
        return {
            "emulated_femtoseconds": time.duration_fs,
            "origin": self.origin,
            "bound_by": time.bound,
            "macs": time.macs,
            "main_memory_bytes": time.nbytes,
            "phases": [
                {
                    "core": p.core, "cores_used": used, "cores": there, "cycles": p.cycles,
                    "femtoseconds": p.duration_fs, "busy_cycles": dict(p.busy),
                }
                for p, (used, there) in phases
            ],
        }  # fmt: skip

    def _line(self, line: Line) -> dict[str, Any]:
        said = {"line": line.number, "depth": line.depth, "text": line.text}
        return said | ({"cycles": line.cycles, "runs": line.runs} if self.counted else {})


def disassemble(
    program: Program, view: View, kernel: str | None = None, counted: bool = False, file_lines: Sequence[int] = ()
) -> Disassembly:
    """*program* against the rules of the chip of *view*: listed, and timed unless it breaks one. Where it was read from
    a listing, *file_lines* are the file's numbers of its lines, which findings then name too."""
    isa, chip = view.isa(), view.chip
    timing = Timing(chip, isa)
    findings: tuple[str, ...] = ()
    time = None
    try:
        verify(program, isa, chip)
        check(program, isa, chip)
        time = timing(program)
    except errors.ProgramError as broken:
        findings = (_in_the_file(str(broken), file_lines),)
    findings += _too_large(program, chip)
    counts = _counts(program, timing) if counted and not findings else {}
    lines = tuple(
        Line(number, depth, text, *counts.get(number, ())) for number, (depth, text) in enumerate(program.lines(), 1)
    )
    origin, cores = (None, ()) if time is None else (_origin(time, chip), _cores(program, chip))
    return Disassembly(chip.name, isa.name, program, kernel, bool(counts), lines, findings, time, origin, cores)


def _in_the_file(finding: str, file_lines: Sequence[int]) -> str:
    """*finding*, and where in the file the lines are that it names, if the file counts otherwise."""
    named = dict.fromkeys(int(number) for number in re.findall(r"\bline (\d{1,9})\b", finding))
    there = {n: file_lines[n - 1] for n in named if 0 < n <= len(file_lines) and file_lines[n - 1] != n}
    if not there:
        return finding
    return f"{finding} ({', '.join(f'line {n} is line {at} of the file' for n, at in there.items())})"


def _origin(time: KernelTime, chip: Chip) -> str:
    """The weakest origin of what the time of a program depends on."""
    engines = [(engine, core) for phase in time.phases for engine, core, cycles in phase.engines if cycles]
    pointers = device_numbers(chip, engines, barriers=len(time.phases) > 1)
    return weakest(chip.origin(pointer).origin for pointer in pointers)


def _cores(program: Program, chip: Chip) -> tuple[tuple[int, int], ...]:
    """Of each phase, (cores that get a block, cores of its kind)."""
    each = ((sum(nest.blocks for nest in phase.nests), crew_of(chip, phase.core).count) for phase in program.phases)
    return tuple((min(blocks, count), count) for blocks, count in each)


def _too_large(program: Program, chip: Chip) -> tuple[str, ...]:
    """A program whose buffers no allocator could place is a finding, however well it is written."""
    wanted, main = sum(param.nbytes for param in program.params), chip.main_memory
    if wanted <= main.usable:
        return ()
    need, room = units.show(wanted, "bytes"), units.show(main.usable, "bytes")
    return (f"DSF-M002: {program.name}: its buffers need {need}, {main.name} of {chip.name} has {room} for programs",)


def _counts(program: Program, timing: Timing) -> dict[int, tuple[int, int]]:
    """(cycles, runs) of the instruction on each line that has one."""
    numbers = (number for number, item in enumerate(_items(program), 1) if isinstance(item, Instruction))
    counted = ((timing.cycles(ins), runs) for ins, runs in program.instructions())
    return dict(zip(numbers, counted, strict=True))


def _items(program: Program) -> list[object]:
    """What stands on each line of the listing."""
    items: list[object] = []

    def visit(item: object, inside: Sequence[object]) -> None:
        items.append(item)
        for child in inside:
            visit(child, getattr(child, "body", getattr(child, "nests", ())))

    visit(program, program.phases)
    return items


# from and to a file


STDIN = Path("-")


def read(path: Path) -> Program:
    """The program in the file at *path*, a listing or a binary; a ListingError with a sentence for anything else. `-`
    is standard input."""
    return read_with_places(path)[0]


def read_with_places(path: Path) -> tuple[Program, tuple[int, ...]]:
    """What `read` reads, and the file's number of each line of the program; none of a binary's."""
    data = _bytes(path)
    try:
        if data.startswith(MAGIC):
            return decode(data), ()
        text = data.decode()
        return parse(text), places(text)
    except UnicodeDecodeError as error:
        found = f"byte {error.start}: found {data[error.start]:02x}"
        raise errors.ListingError(
            "DSF-I023", f"{path}: {found}; expected a listing in UTF-8, or a binary, which begins with {MAGIC.hex(' ')}"
        ) from None
    except errors.ListingError as error:
        raise errors.ListingError(error.code, f"{path}: {error.sentence}") from None


def _bytes(path: Path) -> bytes:
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            kind = path.stat().st_mode
            if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # a pipe may never say anything, a device never end
                raise errors.ListingError(
                    "DSF-I023", f"{path} is no regular file; expected a listing or a binary, or - for standard input"
                )
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise errors.ListingError(
            "DSF-I023", f"{path} cannot be read: {reason}; expected a listing or a binary"
        ) from None
    if len(data) > MOST_BYTES:
        raise errors.ListingError("DSF-I023", f"{path} has more than {MOST_BYTES >> 20} MiB; no program is that long")
    return data


def write(program: Program, path: Path) -> None:
    """*program* as a binary at *path*, at once: whoever reads the file meanwhile reads the one or the other."""
    data = encode(program)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("xb") as file:
            file.write(data)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise errors.ListingError("DSF-I025", f"{path} cannot be written: {error.strerror or error}") from None


# from a chip's own library


def emitted(view: View, kind: str, sizes: Sequence[int], dtype: str | None) -> tuple[Program, str]:
    """The program that the library of *view* writes for a *kind* of `SHAPES` on dense operands of *sizes*, and who
    wrote it. A UsageError where the kind or its sizes are not such; a FallbackError where nobody serves it."""
    intent = _intent(kind, sizes, _format(view, dtype))
    isa = view.isa()
    target = Target(view.chip, isa, Timing(view.chip, isa), trees=view.trees())
    choice = Chooser.of(target, view.kernels())(intent)
    if choice.kernel is None or choice.program is None:
        raise errors.FallbackError("DSF-F002", f"{intent} would run on the host of {view.chip.name}: {choice.reason}")
    return choice.program, f"{choice.kernel.name} of {choice.kernel.library} for {intent}: {choice.reason}"


def _format(view: View, dtype: str | None) -> torch.dtype:
    name = dtype or view.chip.numerics.preferred
    if not known_dtype(name):
        numerics = view.chip.numerics
        raise errors.DtypeError(
            "DSF-N003",
            f"no number format named '{name}'; {view.chip.name} has {', '.join(numerics.dtypes)}, and prefers "
            f"{numerics.preferred}",
        )
    return torch_dtype(name)


def _intent(kind: str, sizes: Sequence[int], dtype: torch.dtype) -> Intent:
    recipe = _RECIPES.get(kind)
    if recipe is None:
        raise errors.UsageError("DSF-K020", f"no listing of a '{kind}'; expected one of {', '.join(_RECIPES)}")
    names, make = recipe
    if len(sizes) != len(names) or any(n < 1 for n in sizes):
        found = ",".join(map(str, sizes))
        raise errors.UsageError("DSF-K020", f"a {kind} has the sizes {','.join(names)}, all above zero; got {found}")
    return make(dtype, *sizes)


def _asked(
    kind: str, inputs: Sequence[tuple[int, ...]], output: tuple[int, ...], dtype: torch.dtype, **attrs: Any
) -> Intent:
    """An intent on dense operands, each in a buffer of its own."""
    regions = [Region(n, Window(shape, contiguous(shape), 0, dtype)) for n, shape in enumerate((*inputs, output))]
    return Intent(kind, tuple(regions[:-1]), tuple(regions[-1:]), attributes(**attrs))


def _matmul(dtype: torch.dtype, m: int, n: int, k: int) -> Intent:
    return _asked("matmul", [(m, k), (k, n)], (m, n), dtype)


def _linear(dtype: torch.dtype, m: int, n: int, k: int) -> Intent:
    return _asked("linear", [(m, k), (n, k)], (m, n), dtype, has_bias=False, transposed=True)


def _attention(
    dtype: torch.dtype, batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int
) -> Intent:
    """Causal where there are as many queries as keys, as in a prefill."""
    if heads % kv_heads:
        raise errors.UsageError("DSF-K020", f"{heads} heads do not share {kv_heads} kv_heads evenly")
    q, kv = (batch, heads, queries, head_dim), (batch, kv_heads, keys, head_dim)
    causal = queries == keys > 1
    return _asked(
        "attention", [q, kv, kv], q, dtype, causal=causal, groups=heads // kv_heads, has_mask=False,
        scale=head_dim**-0.5,
    )  # fmt: skip


def _rms_norm(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    shape = (rows, columns)
    return _asked(
        "rms_norm", [shape, (columns,)], shape, dtype, compute=torch.float32, eps=1e-6, weight_after_cast=True
    )


def _layer_norm(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    shape, each = (rows, columns), (columns,)
    return _asked("layer_norm", [shape, each, each], shape, dtype, axes=1, eps=1e-5, has_bias=True, has_weight=True)


def _softmax(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    return _asked("softmax", [(rows, columns)], (rows, columns), dtype, dim=1, log=False)


def _gated(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    shape = (rows, columns)
    return _asked("gated_activation", [shape, shape], shape, dtype, act="silu")


def _sum(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    return _asked("reduce", [(rows, columns)], (rows, 1), dtype, dims=(1,), keepdim=True, op="sum")


def _copy(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    return _asked("copy", [(rows, columns)], (rows, columns), dtype)


PRODUCT, ROWS = ("m", "n", "k"), ("rows", "columns")
_RECIPES: dict[str, tuple[tuple[str, ...], Callable[..., Intent]]] = {
    "matmul": (PRODUCT, _matmul),
    "linear": (PRODUCT, _linear),
    "attention": (("batch", "heads", "kv_heads", "queries", "keys", "head_dim"), _attention),
    "rms_norm": (ROWS, _rms_norm),
    "layer_norm": (ROWS, _layer_norm),
    "softmax": (ROWS, _softmax),
    "gated_activation": (ROWS, _gated),
    "sum": (ROWS, _sum),
    "copy": (ROWS, _copy),
}
SHAPES: dict[str, tuple[str, ...]] = {kind: names for kind, (names, _) in _RECIPES.items()}
"""The kinds that `emitted` knows, and the sizes of each."""
