"""Does a hardware description hang together? An engine's core exists, a path's ends are memories, one memory is main,
and its numbers go together: heat can leave, a chip at rest is not throttled, it draws less idle than at full load.

It is asked of files that the schema may have refused, so whatever has a wrong form is passed over: the form is reported
already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from dsf import units
from dsf.hdl.form import written
from dsf.hdl.problems import Json, Problem, close, pointer_of, show

__all__ = ["of_references"]

ABSOLUTE_ZERO = -273.15  # °C

_MAY_BE_ZERO = ("_cycles", "_gap_blocks")  # ends of the names of limits that add to something, or bound a gap

_SHORTEST_PERIOD = 10**12  # fs: each control period is an event of the timeline


def of_references(document: Json) -> Iterator[Problem]:
    """Every name in *document* that names nothing, and every pair of fields that contradict each other."""
    for check in _CHECKS:
        yield from check(document)


def _named(document: Json, *keys: str) -> dict[str, Json]:
    """The objects within the object at *keys*, by name; empty if there is no such object."""
    node: Any = document
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return {k: v for k, v in node.items() if isinstance(v, dict)} if isinstance(node, dict) else {}


def _names(node: Json, key: str) -> list[str]:
    """The texts at *key* of *node*: one, or a list of them."""
    value = node.get(key)
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str)]


def _unknown(pointer: str, kind: str, names: Iterable[str], known: Iterable[str]) -> Iterator[Problem]:
    known = list(known)
    for name in names:
        if name not in known:
            yield Problem(pointer, f"there is no {kind} named {show(name)}{close(name, known)}")


def _clocks(document: Json) -> Iterator[Problem]:
    known = _named(document, "clocks")
    for part in ("cores", "engines"):
        for name, node in _named(document, part).items():
            yield from _unknown(pointer_of(f"/{part}", name, "clock"), "clock", _names(node, "clock"), known)


def _cores(document: Json) -> Iterator[Problem]:
    known = _named(document, "cores")
    for part in ("engines", "memories"):
        for name, node in _named(document, part).items():
            yield from _unknown(pointer_of(f"/{part}", name, "core"), "core", _names(node, "core"), known)


def _teams(document: Json) -> Iterator[Problem]:
    """A team is of known cores that one clock drives, as many as the chip has; its name is no core's."""
    known = _named(document, "cores")
    for name, members in _named(document, "teams").items():
        where = pointer_of("/teams", name)
        if name in known:
            yield Problem(where, f"there is a core named {show(name)} as well; take another name")
        yield from _unknown(where, "core", [*_named(members)], known)
        clocks = {member: _names(known[member], "clock") for member in _named(members) if member in known}
        if len({tuple(clock) for clock in clocks.values()}) > 1:
            told = ", ".join(f"{member} by {', '.join(clock)}" for member, clock in clocks.items())
            yield Problem(where, f"its cores are driven by several clocks ({told}); a team has one")
        for member in clocks:
            wanted, there = _value(members, member, "count"), _value(known[member], "count", "count")
            if wanted and there and wanted > there:
                yield Problem(pointer_of(where, member), f"found {wanted}; the chip has {there} of them")


def _memories(document: Json) -> Iterator[Problem]:
    memories = _named(document, "memories")
    main = [name for name, node in memories.items() if node.get("main") is True]
    if memories and len(main) != 1:
        found = f"found {', '.join(main)}" if main else "found none"
        yield Problem("/memories", f'{found}; expected exactly one memory with "main": true, where tensors live')
    for name, node in memories.items():
        yield from _memory(pointer_of("/memories", name), node)


def _memory(where: str, node: Json) -> Iterator[Problem]:
    if node.get("scope") == "core" and "core" not in node:
        yield Problem(f"{where}/core", "is missing; a memory of scope 'core' names the kind of core that owns it")
    if node.get("scope") != "core" and "core" in node:
        yield Problem(
            f"{where}/core", f"a memory of scope {show(node.get('scope'))} belongs to no kind of core; drop it"
        )
    if node.get("main") is True and node.get("scope") != "chip":
        yield Problem(
            f"{where}/scope", f"found {show(node.get('scope'))}; expected 'chip', since this is the main memory"
        )
    size, reserved = _value(node, "size", "bytes"), _value(node, "reserved", "bytes")
    if size is not None and reserved is not None and reserved >= size:
        yield Problem(f"{where}/reserved", f"reserves {units.show(reserved, 'bytes')} of {units.show(size, 'bytes')}")
    for key in ("alignment", "burst"):
        piece = _value(node, key, "bytes")
        if size and piece is not None and piece > size:
            found = f"found {units.show(piece, 'bytes')}; the whole memory has {units.show(size, 'bytes')}"
            yield Problem(f"{where}/{key}", found)


def _value(node: Json, key: str, dimension: str) -> Any:
    quantity = node.get(key)
    try:
        return units.parse(written(quantity["value"], quantity.get("unit")), dimension) if quantity else None
    except (ValueError, TypeError, KeyError, AttributeError):  # no such quantity: the schema said so
        return None


def _engines(document: Json) -> Iterator[Problem]:
    for name, node in _named(document, "engines").items():
        where, rates = pointer_of("/engines", name), _named(node, "rates")
        if node.get("kind") == "matrix":
            yield from _matrix_engine(where, node, rates)
        elif node.get("kind") in ("vector", "scalar") and "default" not in rates:
            yield Problem(
                f"{where}/rates/default", f"is missing; a {node['kind']} engine needs a rate for any other class"
            )


def _matrix_engine(where: str, node: Json, rates: dict[str, Json]) -> Iterator[Problem]:
    if "mac" not in rates:
        yield Problem(f"{where}/rates/mac", "is missing; a matrix engine needs multiply-accumulates per cycle")
        return
    tiles = set(_table(node.get("tiles")))
    for dtype in _table(rates["mac"]):
        if dtype not in tiles and "default" not in tiles:
            yield Problem(f"{where}/tiles", f"has no tile for {dtype}, which has a rate; write its [m, k, n]")


def _table(quantity: Any) -> Json:
    value = quantity.get("value") if isinstance(quantity, dict) else None
    return value if isinstance(value, dict) else {}


def _paths(document: Json) -> Iterator[Problem]:
    memories, engines = _named(document, "memories"), _named(document, "engines")
    known = _named(document, "cores")
    owners = {name: owner for name, node in memories.items() for owner in _names(node, "core") if owner in known}
    for key, node in _named(document, "paths").items():
        where = pointer_of("/paths", key)
        yield from _unknown(where, "memory", key.split("->") if key.count("->") == 1 else (), memories)
        yield from _unknown(f"{where}/engine", "engine", _names(node, "engine"), engines)
        for mover in _names(node, "engine"):
            cores = [core for core in _names(engines.get(mover, {}), "core") if core in known]
            for end in key.split("->"):
                if cores and end in owners and owners[end] not in cores:
                    found = f"engine {mover} is in {', '.join(cores)}; {end} belongs to {owners[end]}"
                    yield Problem(f"{where}/engine", found)


def _numerics(document: Json) -> Iterator[Problem]:
    rules = _named(document, "numerics", "dtypes")
    preferred = document.get("numerics", {}).get("preferred") if isinstance(document.get("numerics"), dict) else None
    if isinstance(preferred, str) and rules and rules.get(preferred, {}).get("matrix") != "native":
        yield Problem("/numerics/preferred", f"found {show(preferred)}; expected a dtype whose matrix rule is 'native'")
    if isinstance(preferred, str) and rules.get(preferred, {}).get("vector") == "host":
        found = f"found {show(preferred)}, whose vector rule is 'host'; expected one that the chip itself computes with"
        yield Problem("/numerics/preferred", found)
    kinds = [engine.get("kind") for engine in _named(document, "engines").values()]
    rates = [_table(_named(e, "rates").get("mac")) for e in _named(document, "engines").values()]
    for dtype, rule in rules.items():
        if rule.get("matrix") == "native" and not any(dtype in r or "default" in r for r in rates):
            yield Problem(
                pointer_of("/numerics/dtypes", dtype, "matrix"),
                f"'native', but no matrix engine has a rate for {dtype}",
            )
        if rule.get("vector") == "native" and kinds and "vector" not in kinds:
            where = pointer_of("/numerics/dtypes", dtype, "vector")
            yield Problem(where, "'native', but no engine is of kind 'vector'; expected 'host'")
        for side in ("matrix", "vector"):
            yield from _cast(pointer_of("/numerics/dtypes", dtype, side), rule.get(side), side, rules)


def _cast(where: str, how: Any, side: str, rules: dict[str, Json]) -> Iterator[Problem]:
    target = how.removeprefix("cast:") if isinstance(how, str) and how.startswith("cast:") else None
    if target is not None and rules.get(target, {}).get(side) != "native":
        yield Problem(where, f"casts to {target}, whose {side} rule is not 'native'")


def _sources(document: Json) -> Iterator[Problem]:
    known = document.get("sources")
    if isinstance(known, dict):
        yield from _cited("", {k: v for k, v in document.items() if k != "sources"}, known)


def _cited(pointer: str, node: Any, known: Json) -> Iterator[Problem]:
    if isinstance(node, list):
        for index, child in enumerate(node):
            yield from _cited(pointer_of(pointer, index), child, known)
    if not isinstance(node, dict):
        return
    cited = node.get("source")
    if isinstance(cited, str) and cited not in known:
        yield from _unknown(pointer_of(pointer, "source"), "source", [cited], known)
    for key, child in node.items():
        if isinstance(child, dict | list):
            yield from _cited(pointer_of(pointer, key), child, known)


def _interconnect(document: Json) -> Iterator[Problem]:
    links, node = _named(document, "interconnect", "links"), _named(document, "interconnect").get("node", {})
    yield from _unknown("/interconnect/node/link", "link", _names(node, "link"), links)
    for name, link in links.items():
        yield from _part_of_the_whole(pointer_of("/interconnect/links", name), link, "efficiency")


def _part_of_the_whole(where: str, node: Json, key: str) -> Iterator[Problem]:
    share = _value(node, key, "share")
    if share is not None and share > 1:
        yield Problem(f"{where}/{key}", f"found {share}; a share of the whole is 1 at most")


def _sync(document: Json) -> Iterator[Problem]:
    sync = _named(document).get("sync", {})
    usable, ids = _value(sync, "event_ids", "count"), _named(sync).get("reserved_event_ids", {}).get("value")
    for place, reserved in enumerate(ids if isinstance(ids, list) else ()):
        number = _value({"id": {"value": reserved}}, "id", "count")
        if usable is not None and number is not None and number < usable:
            found = f"found {number}, but /sync/event_ids says that 0 to {usable - 1} are usable"
            yield Problem(f"/sync/reserved_event_ids/value/{place}", found)


def _watts(document: Json) -> Iterator[Problem]:
    power = _named(document).get("power", {})
    yield from _part_of_the_whole("/power", power, "voltage_floor")
    states = _named(power, "states")
    idle = _value(states, "idle", "watts")
    drawn = [(pointer_of("/power/states", name), _value(states, name, "watts")) for name in states]
    for where, watts in [("/power/limit", _value(power, "limit", "watts")), *drawn]:
        if idle and watts and watts < idle:
            yield Problem(where, f"found {units.show(watts, 'watts')}; idle alone draws {units.show(idle, 'watts')}")


def _thermal(document: Json) -> Iterator[Problem]:
    nodes = [*_named(document, "thermal", "nodes")]
    heated = _names(document["thermal"], "heated") if isinstance(document.get("thermal"), dict) else ()
    yield from _unknown("/thermal/heated", "thermal node", heated, nodes)
    for key in _named(document, "thermal", "edges"):
        yield from _unknown(pointer_of("/thermal/edges", key), "thermal node", key.split("->"), [*nodes, "ambient"])
    yield from _ways_out(nodes, [key for key in _named(document, "thermal", "edges") if key.count("->") == 1])
    yield from _temperatures(_named(document).get("thermal", {}))


def _ways_out(nodes: list[str], edges: list[str]) -> Iterator[Problem]:
    """Heat that enters a node must be able to leave: along the edges, in either direction, to ambient."""
    joined: dict[frozenset[str], str] = {}
    for edge in edges:
        ends = frozenset(edge.split("->"))
        if len(ends) == 1:
            yield Problem(pointer_of("/thermal/edges", edge), "joins a node with itself; drop it")
        if ends in joined:
            yield Problem(pointer_of("/thermal/edges", edge), f"joins what {joined[ends]} joins already; keep one")
        joined.setdefault(ends, edge)
    cooled = {"ambient"}
    while reached := set[str]().union(*(ends for ends in joined if ends & cooled)) - cooled:
        cooled |= reached
    for node in nodes:
        if edges and node not in cooled:
            yield Problem(
                pointer_of("/thermal/nodes", node), "has no way to ambient along the edges; it would only heat up"
            )


def _temperatures(thermal: Json) -> Iterator[Problem]:
    """At rest the chip is not throttled; the hotter a step of the ladder, the slower, and even the first is slower than
    the nominal clock; shutdown is hotter than them all."""
    throttle = _named(thermal).get("throttle", {})
    ladder, where = throttle.get("ladder"), "/thermal/throttle"
    steps = [(f"{where}/ladder/{n}", step) for n, step in enumerate(ladder if isinstance(ladder, list) else ())]
    rungs = [(at, step, _value(step, "above", "celsius")) for at, step in steps if isinstance(step, dict)]
    rungs = sorted((rung for rung in rungs if rung[2] is not None), key=lambda rung: rung[2])
    limits = [(f"{at}/above", celsius) for at, _, celsius in rungs]
    if (shutdown := _value(throttle, "shutdown", "celsius")) is not None:
        limits.append((f"{where}/shutdown", shutdown))
    slow = [(f"{at}/frequency", _value(step, "frequency", "share")) for at, step, _ in rungs]
    yield from _room(_value(thermal, "ambient", "celsius"), limits)
    for (before, low), (at, high) in pairwise(limits):
        if high <= low:
            found, least = units.show(high, "celsius"), units.show(low, "celsius")
            yield Problem(at, f"found {found}; expected more than the {least} of {before}")
    for (_, fast), (at, share) in pairwise([("", 1), *(step for step in slow if step[1] is not None)]):
        if share >= fast:
            yield Problem(at, f"found {share}; expected less than {fast}: a hotter step slows the chip down further")


def _room(ambient: float | None, limits: list[tuple[str, float]]) -> Iterator[Problem]:
    if ambient is None:
        return
    found = f"found {units.show(ambient, 'celsius')}"
    where, lowest = min(limits, key=lambda limit: limit[1], default=("", float("inf")))
    if ambient >= lowest:
        rest = f"too hot for the chip at rest, since {where} is {units.show(lowest, 'celsius')}"
        yield Problem("/thermal/ambient", f"{found}, {rest}")
    if ambient <= ABSOLUTE_ZERO:
        yield Problem("/thermal/ambient", f"{found}, which no room has")


def _power(document: Json) -> Iterator[Problem]:
    engines = _named(document, "engines")
    for name in _named(document, "power", "engines"):
        yield from _unknown(pointer_of("/power/engines", name), "engine", [name], engines)


def _control(document: Json) -> Iterator[Problem]:
    period = _value(_named(document, "thermal").get("control", {}), "period", "femtoseconds")
    if period is not None and 0 < period < _SHORTEST_PERIOD:
        found, least = units.show(period, "femtoseconds"), units.show(_SHORTEST_PERIOD, "femtoseconds")
        yield Problem("/thermal/control/period", f"found {found}; expected at least {least}, faster than any sensor")


def _cap(document: Json) -> Iterator[Problem]:
    """A cap above the firmware's first step would never act: the firmware keeps the chip below it."""
    thermal = _named(document).get("thermal", {})
    cap = _value(_named(thermal).get("control", {}), "cap", "celsius")
    ladder = _named(thermal).get("throttle", {}).get("ladder")
    steps = (
        [_value(rung, "above", "celsius") for rung in ladder if isinstance(rung, dict)]
        if isinstance(ladder, list)
        else []
    )
    lowest = min((step for step in steps if step is not None), default=None)
    if cap is not None and lowest is not None and cap > lowest:
        found, least = units.show(cap, "celsius"), units.show(lowest, "celsius")
        yield Problem(
            "/thermal/control/cap",
            f"found {found}; the firmware slows the chip down above {least} already, so it would never act",
        )


def _limits(document: Json) -> Iterator[Problem]:
    """A limit divides, or is a size or a number of things: nothing at all is meant by few of them."""
    for name, node in _named(document, "limits").items():
        value = node.get("value")
        for place, one in enumerate(value if isinstance(value, list) else [value]):
            where = pointer_of("/limits", name, "value", *([place] if isinstance(value, list) else []))
            if _value({"limit": {**node, "value": one}}, "limit", "limit") == 0 and not name.endswith(_MAY_BE_ZERO):
                yield Problem(where, f"found {show(one)}; expected a limit above zero")


def _variants(document: Json) -> Iterator[Problem]:
    variants = _named(document, "variants")
    own = [name for name, node in variants.items() if "like" not in node]
    for name, node in variants.items():
        yield from _unknown(
            pointer_of("/variants", name, "like"), "variant that is like no other", _names(node, "like"), own
        )
        for pointer in node.get("set", {}) if isinstance(node.get("set"), dict) else ():
            if not exists(document, pointer):
                yield Problem(
                    pointer_of("/variants", name, "set", pointer),
                    f"sets {pointer}, a field that this file does not have",
                )


def exists(document: Json, pointer: str) -> bool:
    """Whether *document* has a field at *pointer*; only through objects, since variants change nothing else."""
    node: Any = document
    for key in pointer.split("/")[1:]:
        if not isinstance(node, dict) or key not in node:
            return False
        node = node[key]
    return True


_CHECKS: tuple[Callable[[Json], Iterator[Problem]], ...] = (
    _clocks, _cores, _teams, _memories, _engines, _paths, _numerics, _sources, _interconnect, _sync, _power, _watts,
    _thermal, _control, _cap, _limits, _variants,
)  # fmt: skip
