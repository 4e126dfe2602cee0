"""What DSF states about a chip, as values to compare: each probe is a function from a chip to plain data.

Nothing here repeats a number of the description: a probe states what follows from it, such as times, programs' rules,
results and errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from attrs import frozen
from tests.sensitivity.bench import attached, report_of, said
from tests.sensitivity.samples import ahead_of, cycles_of, order_of, samples_of
from torch.nn import functional as F

from dsf import device, errors, hdl
from dsf.hdl import Chip
from dsf.isa.program import dtype_name
from dsf.pipeline import Session
from dsf.plugins import registry

__all__ = ["PROBES", "Probe", "stated"]

GIB = 1 << 30
HALF, WIDE = torch.float16, torch.float32
FLOATS = (HALF, torch.bfloat16, WIDE)
NUMBERS = (*FLOATS, torch.float64, torch.int8, torch.uint8, torch.bool, torch.int16, torch.int32, torch.int64)
STORED = (*NUMBERS, torch.float8_e4m3fn, torch.float8_e5m2)


@frozen
class Probe:
    """A question to a chip, and the parts of a description (JSON pointers) that are likely to be in its answer."""

    name: str
    ask: Callable[[Chip], Any]
    about: tuple[str, ...] = ()


def _reported(work: Callable[[], Any], chip: Chip, **options: Any) -> Any:
    """The report of *work* on *chip*."""

    def report() -> Any:
        with attached(chip, **options) as session, torch.no_grad():
            work()
            return report_of(session)

    return said(report)


def _empty(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="npu")


def _products() -> None:
    """Products in every format of floating point, large enough for several tiles in each direction; int8 as well."""
    for dtype in FLOATS:
        F.linear(_empty(300, 1100, dtype=dtype), _empty(520, 1100, dtype=dtype), _empty(520, dtype=dtype)).sum()
    torch.matmul(_empty(3, 40, 200), _empty(3, 200, 70))


def _attention() -> None:
    """Prefill of even and odd length and decode, with grouped heads."""
    for queries, keys in ((200, 200), (557, 557), (1, 300)):
        q, k, v = _empty(1, 8, queries, 64), _empty(1, 2, keys, 64), _empty(1, 2, keys, 64)
        F.scaled_dot_product_attention(q, k, v, is_causal=queries > 1, enable_gqa=True)


def _rows() -> None:
    """Norms, softmax, reductions, indices of the largest, running sums; rows too long for one instruction."""
    for dtype in (HALF, WIDE):
        x = _empty(500, 1000, dtype=dtype)
        F.softmax(x, -1)
        F.rms_norm(x, (1000,), _empty(1000, dtype=dtype))
        F.layer_norm(x, (1000,))
        x.sum(-1), x.amax(-1), x.argmax(-1), x.cumsum(-1)
    _empty(4, 50_000, dtype=WIDE).sum(-1)
    _empty(40, 300, dtype=torch.int32).cumsum(-1)


def _elements() -> None:
    """Arithmetic in every format, functions of every class, comparisons, selections, casts from each format."""
    x, mask = _empty(30, 1000, dtype=WIDE), _empty(30, 1000, dtype=torch.bool)
    for function in (torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.sigmoid, torch.tanh, torch.sin, torch.abs):
        function(x)
    torch.where(mask, x, x / x)
    for dtype in NUMBERS:
        y = _empty(30, 1000, dtype=dtype)
        y + y if dtype != torch.bool else y | y
        y.to(WIDE), x.to(dtype), y == y


def _moves() -> None:
    """Joins, gathers, fills, ramps, transposes; what the host does; copies there and back."""
    x = torch.zeros(300, 700, dtype=HALF).to("npu")
    torch.cat((x, x), 1), x.t().contiguous(), torch.full((999,), 2.0, device="npu")
    F.embedding(torch.arange(99).to("npu"), x), torch.arange(99, device="npu")
    torch.sort(x), x.cpu()


def _streams() -> None:
    """Main memory from end to end, and products and sums that the cache serves or does not."""
    for n in (1 << 20, 1 << 24, 1 << 26):
        x = _empty(n // 1024, 1024)
        x + x
    F.linear(_empty(64, 4096), _empty(4096, 4096)), F.linear(_empty(1, 4096), _empty(11008, 4096))
    F.linear(_empty(8192, 8192), _empty(8192, 8192)), _empty(60_000, 64)[:, ::2].contiguous()


WORKS = {
    _moves: ("/host",),
    _streams: ("/clocks", "/cores", "/memories"),
    _attention: ("/memories", "/sync"),
    _elements: (),
    _rows: (),
    _products: (),
}


def _worked(work: Callable[[], None]) -> Callable[[Chip], Any]:
    return lambda chip: _reported(work, chip)


ROOMS = (
    ("ladder", None, 1), ("ladder", 60, 2), ("ladder", 84, 1),
    ("none", 50, 1), ("none", 84, 1), ("none", 90, 1), ("none", 94, 1),
)  # fmt: skip
"""Thermal policies, degrees, hours: cool, at the cap, on each step of the firmware's ladder, and too hot to run."""


def _heated(chip: Chip) -> Any:
    """A session of hours under each policy, in rooms from cool to so hot that the firmware switches the chip off."""
    return [
        said(lambda policy=policy, room=room, hours=hours: _hours(chip, policy, room, hours))
        for policy, room, hours in ROOMS
    ]


def _hours(chip: Chip, policy: str, room: float | None, hours: int) -> Any:
    """Products and row sums by turns of minutes."""
    with attached(chip, thermal=policy, ambient=room) as session, torch.no_grad():
        x = _empty(2048, 2048)
        for turn in range(4):
            for work in (lambda: F.linear(x, x), lambda: x.cumsum(-1)):
                work()
                session.synchronize()
                _again(session, hours * 450 * 10**15 * (1 + turn % 2))
        return report_of(session)


def _again(session: Session, duration_fs: int) -> None:
    """The last launch again for some *duration_fs*."""
    device.flush()
    before = session.ledger.now_fs
    session.ledger.again(1)
    session.ledger.again(duration_fs // max(session.ledger.now_fs - before, 1))


def _filled(chip: Chip) -> Any:
    """What is said when main memory is full, and where tensors of odd sizes lie until then."""

    def fill() -> None:
        session = Session(registry().view(chip), "timing")
        addresses.append(session.allocate(100, None))
        addresses.append(session.allocate(5000, None))
        while True:
            addresses.append(session.allocate(GIB, None))

    addresses: list[int] = []
    return [said(fill), addresses]


def _computed(chip: Chip) -> Any:
    """Which formats are computed where, products and sums, under `strict` and without."""
    return {
        f"{dtype_name(dtype)} {work.__name__} {strict}": said(
            lambda work=work, dtype=dtype, strict=strict: _where(chip, work, dtype, strict)
        )
        for strict in (False, True)
        for dtype in STORED
        for work in (_product, _sum)
    }


def _product(x: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x, x)


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x | x if x.dtype == torch.bool else x + x


def _where(chip: Chip, work: Callable[[torch.Tensor], Any], dtype: torch.dtype, strict: bool) -> Any:
    with attached(chip, strict=strict) as session:
        try:
            work(_empty(16, 16, dtype=dtype))
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, errors.DsfError):
                raise
            return "torch refuses"
        report = report_of(session)
        return [[k["name"] for k in report["kernels"]], [f["reason"] for f in report["fallbacks"]]]


def _results(chip: Chip) -> Any:
    """Numbers that each format rounds, loses below its smallest, or cannot hold, out of instructions."""
    found = {}
    for dtype in FLOATS:
        with attached(chip, "isa"):
            x = torch.tensor([1.0, 1.1, 3.3, 1e-6, 6e-8, 60000.0, 3e38], dtype=torch.float64).to(dtype).to("npu")
            results = [x * x, x + x, x / 3, x.to(WIDE) * 1.0001, (x.to(WIDE) * 1.0001).to(dtype), x * 1e-38]
            found[dtype_name(dtype)] = [str(r.cpu().tolist()) for r in results]
    return found


PROBES = (
    Probe("instructions", lambda chip: cycles_of(chip, samples_of(hdl.load(chip.name))),
          ("/engines", "/paths", "/limits", "/sync", "/memories")),
    Probe("flags ahead", lambda chip: order_of(chip, ahead_of(hdl.load(chip.name))), ("/sync", "/teams")),
    *(Probe(work.__name__.strip("_"), _worked(work), about) for work, about in WORKS.items()),
    Probe("formats", _computed, ("/numerics",)),
    Probe("results", _results, ("/numerics",)),
    Probe("full memory", _filled, ("/memories",)),
    Probe("heat", _heated, ("/power", "/thermal")),
)  # fmt: skip
"""Every question; those that are asked first are the cheapest."""


@cache
def stated(probe: Probe, chip: Chip) -> Any:
    """The answer of a chip as it is described, asked once."""
    return probe.ask(chip)
