"""The temperatures of a chip: the thermal network of its HDL, integrated exactly while the power is constant.

Nodes have a capacity C (J/K), edges a resistance R (K/W), the air at `ambient` takes any heat. Heat enters at one node:

    C dT/dt = power at the heated node - sum over edges (T - T of the other end) / R

Scaled by the square root of C the system is symmetric, so its eigenvectors turn it into independent modes, each of
which goes towards its own target exponentially. A step of any length is therefore exact, and so are many equal rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import expm1, fsum
from operator import mul

import numpy as np
from attrs import define, field, frozen

from dsf import errors
from dsf.hdl import Thermal

__all__ = ["Modes", "Network"]

AIR = "ambient"


@frozen(eq=False)
class Modes:
    """A network's modes: *kelvin*, what one unit of each means at each node; *drive*, what one watt adds to each per
    second; *numbered*, for each its number, where one watt leads it in the end, and its rate in 1/s."""

    kelvin: dict[str, tuple[float, ...]]
    drive: tuple[float, ...]
    numbered: tuple[tuple[int, float, float], ...]

    @classmethod
    def of(cls, thermal: Thermal) -> Modes:
        """The modes of *thermal*. An HdlError names a node whose heat finds no way to the air."""
        nodes = [*thermal.nodes]
        _check_ways_out(thermal)
        conductance = np.zeros((len(nodes), len(nodes)))
        for ends, resistance in thermal.edges.items():
            inside = [nodes.index(end) for end in ends if end != AIR]
            for i in inside:
                conductance[i, i] += 1 / resistance
            if len(inside) == 2:
                conductance[inside[0], inside[1]] -= 1 / resistance
                conductance[inside[1], inside[0]] -= 1 / resistance
        root = np.sqrt([thermal.nodes[n] for n in nodes])
        rates, vectors = np.linalg.eigh(conductance / np.outer(root, root))
        kelvin = {n: tuple((vectors[i] / root[i]).tolist()) for i, n in enumerate(nodes)}
        if rates[0] <= rates[-1] * 1e-12:
            raise errors.HdlError(
                "DSF-H021",
                "/thermal: the times of its nodes differ by over 12 orders of magnitude; leave out the fastest",
            )
        drive = kelvin[thermal.heated]
        numbered = ((i, d / r, r) for i, (d, r) in enumerate(zip(drive, rates.tolist(), strict=True)))
        return cls(kelvin, drive, tuple(numbered))


def _check_ways_out(thermal: Thermal) -> None:
    """Every node is joined with the air, by whatever way; else it would warm up for ever."""
    joined, grown = {AIR}, True
    while grown:
        new = {end for ends in thermal.edges for end in ends if joined & set(ends)} - joined
        joined, grown = joined | new, bool(new)
    for node in thermal.nodes:
        if node not in joined:
            raise errors.HdlError(
                "DSF-H021", f"/thermal/edges: no way leads from {node} to {AIR}; add an edge by which its heat leaves"
            )


@define(eq=False)
class Network:
    """The temperatures of one chip in a room of *ambient* °C; everything is as warm as the room at first."""

    thermal: Thermal
    ambient: float
    modes: Modes = field(init=False)
    _state: list[float] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.modes = Modes.of(self.thermal)
        self._state = [0.0] * len(self.modes.drive)

    @property
    def celsius(self) -> float:
        """The heated node's temperature."""
        return self.ambient + sum(map(mul, self.modes.drive, self._state))

    def at(self, node: str) -> float:
        """The temperature of *node* in °C."""
        return self.ambient + sum(map(mul, self.modes.kelvin[node], self._state))

    def step(self, watts: float, seconds: float) -> None:
        """*seconds* at a constant power: exact for any length, short or long against the network's own times."""
        state = self._state
        for i, gain, rate in self.modes.numbered:  # once or twice a launch: a comprehension takes twice as long
            x = state[i]
            state[i] = x - (gain * watts - x) * expm1(-rate * seconds)

    def rounds(self, pieces: Iterable[tuple[float, float]], times: int) -> None:
        """*pieces* of (watts, seconds), one after the other, all of it *times* times: exact, in one go.

        A round takes a mode x to A x + B; *times* of them go that often as far, exponentially, towards B / (1 - A).
        """
        pieces = tuple(pieces)
        length = fsum(seconds for _, seconds in pieces)
        for i, gain, rate in self.modes.numbered if length else ():
            b = 0.0
            for watts, seconds in pieces:
                b -= (gain * watts - b) * expm1(-rate * seconds)
            fixed = b / -expm1(-rate * length)
            self._state[i] -= (fixed - self._state[i]) * expm1(-rate * length * times)

    def settle(self, watts: float) -> None:
        """What the temperatures are after a very long time at *watts*."""
        self._state = [gain * watts for _, gain, _ in self.modes.numbered]

    def set(self, celsius: Mapping[str, float]) -> None:
        """Give every node the temperature that *celsius* has for it."""
        self._state = [0.0] * len(self._state)
        for node, kelvin in self.modes.kelvin.items():
            heat = (celsius[node] - self.ambient) * self.thermal.nodes[node]
            self._state = [x + heat * k for x, k in zip(self._state, kelvin, strict=True)]
