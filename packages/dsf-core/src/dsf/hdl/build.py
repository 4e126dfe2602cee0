"""From a document without findings to the values of the model: one function per part, no check anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from hashlib import sha256
from typing import Any

from dsf import units
from dsf.hdl import model
from dsf.hdl.form import written
from dsf.hdl.frozen import FrozenDict
from dsf.hdl.problems import Json

__all__ = ["build"]


def build(path: str, d: Json) -> model.Chip:
    """The chip of the checked document *d*."""
    return model.Chip(
        name=d["name"],
        vendor=d["vendor"],
        title=d["title"],
        device=d["device"],
        path=path,
        hash=_digest(d),
        clocks=_each(d["clocks"], lambda _, node: _quantity(node, "hertz")),
        cores=_each(d["cores"], _core),
        memories=_each(d["memories"], _memory),
        engines=_each(d["engines"], _engine),
        paths=FrozenDict({(p.source, p.target): p for p in map(_path, d["paths"], d["paths"].values())}),
        numerics=_numerics(d["numerics"]),
        host=_host(d["host"]),
        sync=_sync(d["sync"]),
        teams=_each(d.get("teams", {}), lambda _, node: _each(node, lambda _, count: _quantity(count, "count"))),
        limits=_each(d.get("limits", {}), lambda _, node: _limit(node)),
        interconnect=_interconnect(d.get("interconnect", {})),
        power=_optional(d, "power", _power),
        thermal=_optional(d, "thermal", _thermal),
        kubernetes=_optional(d, "kubernetes", _kubernetes),
        visible_devices_variable=d.get("visible_devices_variable"),
        metrics=_metrics(d.get("metrics", {})),
        measurements=_each(d.get("measurements", {}), lambda name, node: _measurement(name, node, d["sources"])),
        variants=_each(d.get("variants", {}), _variant),
        document=d,
    )


def _measurement(name: str, node: Json, sources: Json) -> model.Measurement:
    points = FrozenDict({key: float(value) for key, value in node["points"].items()})
    origin = model.Origin(node["origin"], sources[node["source"]])
    return model.Measurement(name, node["what"], node["unit"], points, origin)


def _digest(document: Json) -> str:
    return sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _each(nodes: Json, read: Callable[[str, Any], Any]) -> FrozenDict[str, Any]:
    return FrozenDict({name: read(name, node) for name, node in nodes.items()})


def _optional(document: Json, key: str, read: Callable[[Json], Any]) -> Any:
    return read(document[key]) if key in document else None


def _quantity(node: Json, dimension: str) -> Any:
    return units.parse(written(node["value"], node.get("unit")), dimension)


def _get(node: Json, key: str, dimension: str, default: Any = None) -> Any:
    return _quantity(node[key], dimension) if key in node else default


def _list(node: Json | None, dimension: str) -> tuple[Any, ...]:
    return tuple(units.parse(written(v, node.get("unit")), dimension) for v in node["value"]) if node else ()


def _core(name: str, node: Json) -> model.Core:
    return model.Core(name, _quantity(node["count"], "count"), node["clock"])


def _memory(name: str, node: Json) -> model.Memory:
    return model.Memory(
        name=name,
        nbytes=_quantity(node["size"], "bytes"),
        scope=node["scope"],
        alignment=_quantity(node["alignment"], "bytes"),
        core=node.get("core"),
        main=node.get("main", False),
        cache=node.get("cache", False),
        bandwidth=_get(node, "bandwidth", "bytes_per_second"),
        latency_fs=_get(node, "latency", "femtoseconds", 0),
        burst=_get(node, "burst", "bytes", 1),
        banks=_get(node, "banks", "count"),
        reserved=_get(node, "reserved", "bytes", 0),
        core_bytes_per_cycle=_get(node, "core_width", "bytes_per_cycle"),
        mixed=_get(node, "mixed_bandwidth", "bytes_per_second"),
    )


def _engine(name: str, node: Json) -> model.Engine:
    tiles = node["tiles"]["value"] if "tiles" in node else {}
    return model.Engine(
        name=name,
        core=tuple(node["core"]),
        kind=node["kind"],
        clock=node["clock"],
        tiles=FrozenDict({dtype: (m, k, n) for dtype, (m, k, n) in tiles.items()}),
        rates=_each(node.get("rates", {}), lambda _, table: _rates(table)),
        startup_cycles=_get(node, "startup", "cycles", 0),
        queue_depth=_get(node, "queue_depth", "count", 1),
    )


def _rates(table: Json) -> FrozenDict[str, Fraction]:
    unit = table.get("unit")
    return _each(table["value"], lambda _, value: units.parse(written(value, unit), "per_cycle"))


def _path(key: str, node: Json) -> model.Path:
    source, target = key.split("->")
    width, startup = _quantity(node["width"], "bytes_per_cycle"), _get(node, "startup", "cycles", 0)
    return model.Path(source, target, node["engine"], width, startup)


def _numerics(node: Json) -> model.Numerics:
    return model.Numerics(node["preferred"], _each(node["dtypes"], _rule))


def _rule(dtype: str, node: Json) -> model.Rule:
    return model.Rule(
        matrix=node["matrix"],
        vector=node["vector"],
        accumulate=node.get("accumulate", dtype),
        rounding=node.get("rounding", "nearest-even"),
        subnormals=node.get("subnormals", "keep"),
        overflow=node.get("overflow", "saturate" if dtype == "float8_e4m3fn" else "infinity"),
    )


def _host(node: Json) -> model.Host:
    return model.Host(
        launch_latency_fs=_quantity(node["launch_latency"], "femtoseconds"),
        issue_interval_fs=_quantity(node["issue_interval"], "femtoseconds"),
        copy_bandwidth=_quantity(node["copy_bandwidth"], "bytes_per_second"),
        copy_latency_fs=_quantity(node["copy_latency"], "femtoseconds"),
        op_latency_fs=_quantity(node["op_latency"], "femtoseconds"),
        op_bandwidth=_quantity(node["op_bandwidth"], "bytes_per_second"),
    )


def _sync(node: Json) -> model.Sync:
    return model.Sync(
        event_ids=_quantity(node["event_ids"], "count"),
        barrier_cycles=_quantity(node["barrier"], "cycles"),
        reserved_event_ids=_list(node.get("reserved_event_ids"), "count"),
        cross_core_flag_ids=_get(node, "cross_core_flag_ids", "count", 0),
        cross_core_counter_max=_get(node, "cross_core_counter_max", "count", 0),
        cross_core_cycles=_get(node, "cross_core_latency", "cycles", 0),
    )


def _limit(node: Json) -> int | tuple[int, ...]:
    limit: int | tuple[int, ...]
    limit = _list(node, "limit") if isinstance(node["value"], list) else _quantity(node, "limit")
    return limit


def _interconnect(node: Json) -> model.Interconnect:
    return model.Interconnect(_each(node.get("links", {}), _link), _optional(node, "node", _node))


def _link(name: str, node: Json) -> model.Link:
    return model.Link(
        name=name,
        to=node["to"],
        bandwidth=_quantity(node["bandwidth"], "bytes_per_second"),
        latency_fs=_quantity(node["latency"], "femtoseconds"),
        ports=_get(node, "ports", "count", 1),
        efficiency=_get(node, "efficiency", "share", Fraction(1)),
    )


def _node(node: Json) -> model.Node:
    return model.Node(_quantity(node["chips"], "count"), node["topology"], node["link"])


def _power(node: Json) -> model.Power:
    return model.Power(
        limit=_quantity(node["limit"], "watts"),
        states=_each(node["states"], lambda _, state: _quantity(state, "watts")),
        frequencies=tuple(sorted(_list(node.get("frequencies"), "share"), reverse=True)) or (Fraction(1),),
        engines=_each(node.get("engines", {}), lambda _, energy: _quantity(energy, "joules_per_cycle")),
        memory=_get(node, "memory", "joules_per_byte", 0.0),
        voltage_floor=_get(node, "voltage_floor", "share", Fraction(1)),
    )


def _thermal(node: Json) -> model.Thermal:
    throttle = node["throttle"]
    return model.Thermal(
        ambient=_quantity(node["ambient"], "celsius"),
        heated=node["heated"],
        nodes=_each(node["nodes"], lambda _, capacity: _quantity(capacity, "joules_per_kelvin")),
        edges=FrozenDict(dict(map(_edge, node["edges"], node["edges"].values()))),
        ladder=tuple(sorted(map(_rung, throttle["ladder"]), key=lambda rung: rung.celsius)),
        hysteresis=_quantity(throttle["hysteresis"], "kelvin"),
        shutdown=_quantity(throttle["shutdown"], "celsius"),
        control=_optional(node, "control", _control),
    )


def _rung(node: Json) -> model.ThrottleStep:
    return model.ThrottleStep(_quantity(node["above"], "celsius"), _quantity(node["frequency"], "share"))


def _control(node: Json) -> model.Control:
    return model.Control(_quantity(node["cap"], "celsius"), _quantity(node["period"], "femtoseconds"))


def _edge(key: str, node: Json) -> tuple[tuple[str, str], float]:
    start, end = key.split("->")
    return (start, end), _quantity(node, "kelvin_per_watt")


def _kubernetes(node: Json) -> model.Kubernetes:
    return model.Kubernetes(
        resource=node["resource"],
        memory=node.get("memory"),
        memory_unit=_get(node, "memory_unit", "bytes"),
        core=node.get("core"),
        aliases=FrozenDict(node.get("aliases", {})),
        templates=_each(node.get("templates", {}), _template),
    )


def _template(_: str, node: Json) -> model.Template:
    nbytes = _quantity(node["memory"], "bytes")
    return model.Template(_quantity(node["cores"], "count"), nbytes, _get(node, "host_cores", "count", 0))


def _metrics(node: Json) -> model.Metrics:
    return model.Metrics(FrozenDict(node.get("aliases", {})), tuple(node.get("labels", ())))


def _variant(name: str, node: Json) -> model.Variant:
    return model.Variant(name, node["title"], tuple(node["set"]))
