"""What a chip is: frozen values, read from one JSON file and read by everybody. Nobody holds a second copy of a number.

Units, unless a field says otherwise: bytes, hertz, femtoseconds (`_fs`), bytes per second, cycles; shares and rates per
cycle are exact fractions, watts and degrees are floats. The JSON fields are explained in the README beside the chips.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from attrs import field, frozen

from dsf import errors
from dsf.hdl.frozen import FrozenDict
from dsf.units import weakest

__all__ = [
    "Chip", "Control", "Core", "Engine", "Host", "Interconnect", "Kubernetes", "Link", "Measurement", "Memory",
    "Metrics", "Node", "Numerics", "Origin", "Path", "Power", "Rule", "Sync", "Template", "Thermal", "ThrottleStep",
    "Variant",
]  # fmt: skip


_EMPTY: FrozenDict[Any, Any] = FrozenDict()


@frozen
class Origin:
    """Where a number comes from: one of `units.ORIGINS`, and the text of its source."""

    origin: str
    source: str


@frozen
class Core:
    """A kind of core: how many the chip has, and which clock drives them."""

    name: str
    count: int
    clock: str


@frozen
class Memory:
    """One memory: of each core of kind *core*, or of the whole chip. *burst* is the least that one transfer moves,
    *core_bytes_per_cycle* the most that one core gets of it in a cycle of its own clock. A cache's *bandwidth* is that
    of reading, where *mixed* is that of reading and writing together."""

    name: str
    nbytes: int
    scope: str
    alignment: int
    core: str | None = None
    main: bool = False
    cache: bool = False
    bandwidth: int | None = None
    latency_fs: int = 0
    burst: int = 1
    banks: int | None = None
    reserved: int = 0
    core_bytes_per_cycle: int | None = None
    mixed: int | None = None

    @property
    def usable(self) -> int:
        """Bytes that programs can have: all but what firmware and driver keep for themselves."""
        return self.nbytes - self.reserved


@frozen
class Engine:
    """An in-order queue with a unit behind it; *core* names the kinds of cores that have one each.

    *tiles* is (m, k, n) of one step of a matrix engine, by dtype. *rates* is elements a cycle by operation class and
    dtype (class `mac`: multiply-accumulates); `default` stands for every class or dtype that is not named.
    """

    name: str
    core: tuple[str, ...]
    kind: str
    clock: str
    tiles: FrozenDict[str, tuple[int, int, int]] = _EMPTY
    rates: FrozenDict[str, FrozenDict[str, Fraction]] = _EMPTY
    startup_cycles: int = 0
    queue_depth: int = 1


@frozen
class Path:
    """A way between two memories, for one core: who moves the bytes, how many a cycle, and what starting costs."""

    source: str
    target: str
    engine: str
    bytes_per_cycle: int
    startup_cycles: int = 0


@frozen
class Rule:
    """What becomes of work in one dtype: `native`, `cast:<dtype>`, `scalar` (on the scalar engine), `host`, `error`.

    *rounding* (words of `numerics.ROUNDINGS`), *subnormals* (`keep`, `flush`) and *overflow* (`infinity`, `saturate`;
    the latter is all that a format without infinities can) say how the machine makes a number of what it computed.
    """

    matrix: str
    vector: str
    accumulate: str
    rounding: str = "nearest-even"
    subnormals: str = "keep"
    overflow: str = "infinity"


_UNSTATED = Rule(matrix="host", vector="host", accumulate="float32")


@frozen
class Numerics:
    """Number formats: the one models should use, and a rule for each that the chip knows."""

    preferred: str
    dtypes: FrozenDict[str, Rule]

    def rule(self, dtype: str) -> Rule:
        """The rule for *dtype*; a format that the HDL does not mention is computed on the host."""
        return self.dtypes.get(dtype, _UNSTATED)


@frozen
class Host:
    """The machine around the chip. A fallback op takes op_latency plus its bytes over op_bandwidth, and two copies."""

    launch_latency_fs: int
    issue_interval_fs: int
    copy_bandwidth: int
    copy_latency_fs: int
    op_latency_fs: int
    op_bandwidth: int


@frozen
class Sync:
    """Flags: ids 0 to event_ids - 1 are usable for each pair of engines; *barrier_cycles* joins all cores. The cores of
    a team have *cross_core_flag_ids* between them, each set *cross_core_counter_max* times ahead at most and seen
    *cross_core_cycles* later."""

    event_ids: int
    barrier_cycles: int
    reserved_event_ids: tuple[int, ...] = ()
    cross_core_flag_ids: int = 0
    cross_core_counter_max: int = 0
    cross_core_cycles: int = 0


@frozen
class Link:
    """A kind of link: to another `chip`, the `host` or the `network`; bandwidth is of one port in one direction."""

    name: str
    to: str
    bandwidth: int
    latency_fs: int
    ports: int = 1
    efficiency: Fraction = Fraction(1)


@frozen
class Node:
    """The usual server: how many chips, joined how, over which link."""

    chips: int
    topology: str
    link: str


@frozen
class Interconnect:
    """What leaves the chip."""

    links: FrozenDict[str, Link] = _EMPTY
    node: Node | None = None


@frozen
class Power:
    """Watts: the board's limit, what it draws in named states; clock steps as shares of the nominal frequency, the
    fastest first. What work costs beyond `idle`, in joules: a busy cycle of one core's engine, a byte of main memory.

    The voltage falls with the clock, in a straight line to *voltage_floor* of its nominal value at standstill.
    """

    limit: float
    states: FrozenDict[str, float]
    frequencies: tuple[Fraction, ...] = (Fraction(1),)
    engines: FrozenDict[str, float] = _EMPTY
    memory: float = 0.0
    voltage_floor: Fraction = Fraction(1)

    def voltage(self, frequency: Fraction) -> float:
        """The voltage, as a share of the nominal one, at this share of the nominal frequency."""
        return float(self.voltage_floor + (1 - self.voltage_floor) * frequency)


@frozen
class ThrottleStep:
    """Above this temperature the chip's clocks run at this share of their frequency."""

    celsius: float
    frequency: Fraction


@frozen
class Control:
    """Above *cap* °C a thermal policy slows the chip down; it is asked once every *period_fs*."""

    cap: float
    period_fs: int


@frozen
class Thermal:
    """An RC network: heat enters at node *heated* and leaves to `ambient`; nodes in J/K, edges (from, to) in K/W."""

    ambient: float
    heated: str
    nodes: FrozenDict[str, float]
    edges: FrozenDict[tuple[str, str], float]
    ladder: tuple[ThrottleStep, ...]
    hysteresis: float
    shutdown: float
    control: Control | None = None


@frozen
class Template:
    """A partition that the vendor's virtualisation offers."""

    cores: int
    nbytes: int
    host_cores: int = 0


@frozen
class Kubernetes:
    """Names of the extended resources; *memory_unit* is how many bytes one of the *memory* resource stands for."""

    resource: str
    memory: str | None = None
    memory_unit: int | None = None
    core: str | None = None
    aliases: FrozenDict[str, str] = _EMPTY
    templates: FrozenDict[str, Template] = _EMPTY


@frozen
class Metrics:
    """The vendor's exporter: its name for each metric of DSF, and its labels."""

    aliases: FrozenDict[str, str] = _EMPTY
    labels: tuple[str, ...] = ()


@frozen
class Measurement:
    """Published points of one experiment, to fit and to judge by; no computation uses them as the chip's numbers."""

    name: str
    what: str
    unit: str
    points: FrozenDict[str, float]
    origin: Origin


@frozen
class Variant:
    """A SKU that differs from its file's chip in the values at these JSON pointers; `hdl.load` knows it by name."""

    name: str
    title: str
    changes: tuple[str, ...]


@frozen(eq=False)
class Chip:
    """One chip as software sees one device of it. Two chips are equal if their HDL says the same, wherever it lies."""

    name: str
    vendor: str
    title: str
    device: str
    path: str
    hash: str
    clocks: FrozenDict[str, int]
    cores: FrozenDict[str, Core]
    memories: FrozenDict[str, Memory]
    engines: FrozenDict[str, Engine]
    paths: FrozenDict[tuple[str, str], Path]
    numerics: Numerics
    host: Host
    sync: Sync
    teams: FrozenDict[str, FrozenDict[str, int]] = _EMPTY
    limits: FrozenDict[str, int | tuple[int, ...]] = _EMPTY
    interconnect: Interconnect = Interconnect()
    power: Power | None = None
    thermal: Thermal | None = None
    kubernetes: Kubernetes | None = None
    visible_devices_variable: str | None = None
    metrics: Metrics = Metrics()
    measurements: FrozenDict[str, Measurement] = _EMPTY
    variants: FrozenDict[str, Variant] = _EMPTY
    _document: dict[str, Any] = field(factory=dict, repr=False)

    def __eq__(self, other: object) -> bool:
        return self.hash == other.hash if isinstance(other, Chip) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.hash)

    def __str__(self) -> str:
        return self.name

    @property
    def main_memory(self) -> Memory:
        """The memory that tensors live in."""
        return next(m for m in self.memories.values() if m.main)

    def hertz(self, engine: str) -> int:
        """The nominal frequency of *engine*."""
        return self.clocks[self.engines[engine].clock]

    def per_core(self, kind: str) -> tuple[Engine, ...]:
        """The engines that a core of *kind* has, in the file's order."""
        return tuple(e for e in self.engines.values() if kind in e.core)

    def peak_flops(self, dtype: str) -> int:
        """FLOPs per second of all matrix engines at nominal clock, two for each multiply-accumulate."""
        engines = [e for e in self.engines.values() if e.kind == "matrix"]
        macs = sum(self._macs_per_second(engine, dtype) for engine in engines)
        if not macs:
            known = ", ".join(sorted({d for e in engines for d in e.rates["mac"] if d != "default"}))
            raise errors.DtypeError(
                "DSF-N002", f"{self.name}: no matrix engine computes in {dtype}; the HDL states rates for {known}"
            )
        return int(2 * macs)

    def _macs_per_second(self, engine: Engine, dtype: str) -> Fraction:
        rates = engine.rates["mac"]
        rate = rates.get(dtype, rates.get("default", Fraction(0)))
        return rate * self.clocks[engine.clock] * sum(self.cores[core].count for core in engine.core)

    def peak_origin(self, dtype: str) -> str:
        """The origin of `peak_flops`: the weakest of its rates, core counts and clocks."""
        used = [e for e in self.engines.values() if e.kind == "matrix" and self._macs_per_second(e, dtype)]
        pointers = {f"/engines/{e.name}/rates/mac" for e in used} | {f"/clocks/{e.clock}" for e in used}
        pointers |= {f"/cores/{core}/count" for e in used for core in e.core}
        return weakest(self.origin(pointer).origin for pointer in pointers)

    def origin(self, pointer: str) -> Origin:
        """Where the number at a JSON *pointer* like `/memories/L1/size` comes from: its own or its table's origin."""
        node: Any = self._document
        found: dict[str, Any] | None = None
        for key in _keys(pointer):
            node = _step(node, key)
            if node is None:
                raise errors.HdlError("DSF-H006", f"{self.name}: its HDL has no field {pointer}")
            found = node if isinstance(node, dict) and "origin" in node else found
        if found is None:
            raise errors.HdlError("DSF-H006", f"{self.name}: {pointer} is no number; only numbers have an origin")
        return Origin(found["origin"], self._document["sources"][found["source"]])


def _keys(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _step(node: Any, key: str) -> Any:
    """The child of *node*. A table is looked through: /engines/V/rates/exp/float16 needs neither `value` nor a row."""
    if isinstance(node, list):
        return node[int(key)] if key.isdecimal() and int(key) < len(node) else None
    if not isinstance(node, dict):
        return None
    if key not in node and isinstance(node.get("value"), dict):
        return node["value"].get(key, node["value"].get("default"))
    return node.get(key)
