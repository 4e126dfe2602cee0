"""Heat in the loop: what a kernel draws warms the chip, and what is too warm slows the next kernel down.

A kernel draws, while it runs, what the chip draws idle and the mean of its own energy: of its engines' busy cycles,
which goes with the square of the voltage, and of its bytes through the main memory's port. Between kernels the chip
draws idle. For this course of the power, constant over each kernel and each pause, the temperatures are exact.

Once every control period of the HDL, on the timeline, the firmware's ladder and the thermal policy read the temperature
and set the clocks of the kernels that start from then on. Clocks act on cores, not on the shared memories' ports; a
kernel that has started keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import floor, isfinite

from attrs import define, evolve, field, frozen

from dsf import errors
from dsf.hdl import Chip, Control, Power, Thermal
from dsf.machine.thermal import Network
from dsf.machine.timeline import Timeline
from dsf.machine.timing import KernelTime
from dsf.units import show

__all__ = ["COLDEST", "Heat", "Policy", "check_ambient", "coldness", "slowed"]

FEMTO = 10**15
RUNG = ("above", "frequency")
COLDEST = -40.0  # °C: where the range of industrial electronics ends


@frozen(eq=False)
class Policy:
    """How clocks follow the temperature. *next_step* is pure and is asked once every control period: the temperature in
    °C, the present step and the chip in, the step from then on out. Steps count the HDL's frequencies from the fastest.
    """

    name: str
    next_step: Callable[[float, int, Chip], int]


def coldness(chip: Chip) -> str:
    """Why *chip* has no temperature: what its HDL does not state. Empty if it has one."""
    missing = [
        name
        for name, there in (
            ("/power/states/idle", chip.power and chip.power.states.get("idle")),
            ("/power/engines", chip.power and chip.power.engines),
            ("/thermal", chip.thermal),
            ("/thermal/control", chip.thermal and chip.thermal.control),
        )
        if not there
    ]
    return f"the hardware description of {chip.name} has no {', no '.join(missing)}" if missing else ""


def check_ambient(chip: Chip, ambient: object, where: str) -> float:
    """*ambient* °C, if *chip* works in such a room; else a DeviceError. *where* says who asked for it."""
    if lacking := coldness(chip):
        raise errors.DeviceError("DSF-D020", f"{where}: {lacking}, so that it has no temperature; leave it out")
    highest = _highest(chip)
    if isinstance(ambient, bool) or not isinstance(ambient, int | float) or not _is_finite(ambient):
        found = f"{str(ambient)[:40]!r}, which is no temperature"
    elif COLDEST <= ambient <= highest:
        return float(ambient)
    else:
        found = show(ambient, "celsius")
    raise errors.DeviceError(
        "DSF-D020",
        f"{where}: found {found}; expected the room's air in °C, from {COLDEST:g} to {highest:g}, in which "
        f"{chip.name} at rest reaches its cap",
    )


def _is_finite(number: float) -> bool:
    try:
        return isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


def _highest(chip: Chip) -> float:
    """The warmest room in which the chip at rest is not above its cap, rounded down to a tenth."""
    power, thermal = chip.power, chip.thermal
    assert power is not None, "coldness was asked"
    assert thermal is not None, "coldness was asked"
    assert thermal.control is not None, "coldness was asked"
    network = Network(thermal, 0.0)
    network.settle(power.states["idle"])
    return floor((thermal.control.cap - network.celsius) * 10) / 10


def slowed(time: KernelTime, share: Fraction) -> KernelTime:
    """*time* with all cores at this *share* of their clocks; the ports of shared memories are as fast as before."""
    phases = tuple(evolve(phase, clock_hz=int(phase.clock_hz * share)) for phase in time.phases)
    return evolve(time, phases=phases, barrier_fs=int(time.barrier_fs / share))


@define(eq=False)
class Heat:
    """The temperature of one *chip*, with all that `coldness` asks for, in a room of *ambient* °C (or the HDL's).

    It has stood there idle for long when the session begins. *share* is the clocks' share of their nominal frequency
    for the kernel that starts at the timeline's present.
    """

    chip: Chip
    policy: Policy
    timeline: Timeline
    ambient: float | None = None
    network: Network = field(init=False)
    share: Fraction = field(init=False)
    throttled: bool = False
    idle_watts: float = field(init=False)
    _step: int = 0
    _rung: int = 0
    _off: str = ""
    _at_fs: int = field(init=False)
    _watts: float = field(init=False)
    _until_fs: int = 0
    # since the last reset
    joules: float = 0.0
    peak_watts: float = 0.0
    peak_celsius: float = field(init=False)
    busy_fs: int = 0
    throttled_fs: int = 0
    lowest_share: Fraction = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.network = Network(self._thermal, self._thermal.ambient if self.ambient is None else self.ambient)
        self.share = self._power.frequencies[0]
        self.idle_watts = self._watts = self._power.states["idle"]
        self.network.settle(self.idle_watts)
        self._at_fs = self.timeline.now_fs
        self.timeline.at(self._at_fs + self._control.period_fs, self._look)
        self.reset()

    @property
    def _power(self) -> Power:
        assert self.chip.power is not None, "coldness was asked"
        return self.chip.power

    @property
    def _thermal(self) -> Thermal:
        assert self.chip.thermal is not None, "coldness was asked"
        return self.chip.thermal

    @property
    def _control(self) -> Control:
        assert self._thermal.control is not None, "coldness was asked"
        return self._thermal.control

    def reset(self) -> None:
        """Begin to count anew; the chip stays as warm and as slow as it is."""
        self.settle_accounts(self.timeline.now_fs)
        self.joules = 0.0
        self.peak_watts, self.peak_celsius = self.idle_watts, self.network.celsius
        self.busy_fs = self.throttled_fs = 0
        self.lowest_share = self.share

    @property
    def cap(self) -> float:
        """The temperature that a policy holds, in °C."""
        return self._control.cap

    def settled(self, watts: float) -> float:
        """The temperature in °C after a very long time at *watts*."""
        network = Network(self._thermal, self.network.ambient)
        network.settle(watts)
        return network.celsius

    # what kernels draw

    def energy(self, time: KernelTime) -> float:
        """Joules beyond idle of one launch at the present clocks."""
        power = self._power
        busy = (engine for phase in time.phases for engine in phase.engines)
        cycles = sum(power.engines.get(engine, 0.0) * spent for engine, _, spent in busy)
        return cycles * power.voltage(self.share) ** 2 + time.nbytes * power.memory

    def work(self, start_fs: int, end_fs: int, joules: float) -> None:
        """A kernel of *joules* beyond idle, from *start_fs*, the timeline's present, to *end_fs*."""
        if self._off:
            raise errors.DeviceError("DSF-D021", self._off)
        self.settle_accounts(start_fs)
        self._begin(joules, end_fs - start_fs, 1)
        self._until_fs = end_fs

    def rounds(self, pause_fs: int, kernel_fs: int, joules: float, times: int) -> None:
        """*times* such kernels, each after a pause: as so many times `work`, if nothing is due until the last ends."""
        self.settle_accounts(self._until_fs)
        self._begin(joules, kernel_fs, times)
        pieces = ((self.idle_watts, pause_fs / FEMTO), (self._watts, kernel_fs / FEMTO))
        self.network.rounds(pieces, times)
        self.joules += times * sum(watts * seconds for watts, seconds in pieces)
        self._at_fs = self._until_fs = self._at_fs + times * (pause_fs + kernel_fs)

    def _begin(self, joules: float, duration_fs: int, times: int) -> None:
        self._watts = self.idle_watts + (joules * FEMTO / duration_fs if duration_fs else 0.0)
        self.busy_fs += duration_fs * times
        if self.throttled:
            self.throttled_fs += duration_fs * times
        if self._watts > self.peak_watts:
            self.peak_watts = self._watts

    def settle_accounts(self, now_fs: int) -> None:
        """Temperatures and energy at *now_fs*, which is not before the last time."""
        if self._at_fs < self._until_fs:
            self._draw(self._watts, now_fs if now_fs < self._until_fs else self._until_fs)
        if self._at_fs < now_fs:
            self._draw(self.idle_watts, now_fs)

    def _draw(self, watts: float, until_fs: int) -> None:
        seconds = (until_fs - self._at_fs) / FEMTO
        self.network.step(watts, seconds)
        self.joules += watts * seconds
        self._at_fs = until_fs

    # what the temperature does

    def _look(self) -> None:
        """One reading of the sensor: firmware and policy settle the clocks of the next kernels."""
        now = self.timeline.now_fs
        self.timeline.at(now + self._control.period_fs, self._look)
        self.settle_accounts(now)
        celsius = self.network.celsius
        self.peak_celsius = max(self.peak_celsius, celsius)
        if self._off:
            return
        if celsius >= self._thermal.shutdown:
            self._shut_down(celsius, now)
        self._rung = self._firmware(celsius)
        self._step = self._next_step(celsius)
        clocks = [self._power.frequencies[self._step]]
        clocks += [rung.frequency for rung in self._thermal.ladder[: self._rung]]
        self._set_clocks(min(clocks))

    def _set_clocks(self, share: Fraction) -> None:
        self.share, self.throttled = share, share < self._power.frequencies[0]
        self.lowest_share = min(self.lowest_share, share)

    def _firmware(self, celsius: float) -> int:
        """How many rungs of the ladder apply: one is left below its temperature less the hysteresis."""
        ladder, rung = self._thermal.ladder, self._rung
        while rung < len(ladder) and celsius > ladder[rung].celsius:
            rung += 1
        while rung and celsius < ladder[rung - 1].celsius - self._thermal.hysteresis:
            rung -= 1
        return rung

    def _next_step(self, celsius: float) -> int:
        last = len(self._power.frequencies) - 1
        try:
            step = self.policy.next_step(celsius, self._step, self.chip)
        except Exception as cause:  # a stranger's code
            raise self._misled(celsius, f"failed with {type(cause).__name__}: {cause}") from cause
        if isinstance(step, int) and 0 <= step <= last:
            return step
        raise self._misled(celsius, f"answered step {step!r}; expected 0 to {last}, a frequency of {self.chip.name}")

    def _misled(self, celsius: float, what: str) -> errors.PluginError:
        asked = f"the thermal policy '{self.policy.name}', asked at {show(celsius, 'celsius')} and step {self._step},"
        return errors.PluginError("DSF-P008", f"{asked} {what}; mend it, or choose another (thermal)")

    def _shut_down(self, celsius: float, now_fs: int) -> None:
        """Off for good; what ran is cut short, and nothing is drawn from now on."""
        self.idle_watts, self._until_fs = 0.0, now_fs
        self._off = (
            f"{self.chip.name} has switched itself off: {celsius:.1f} °C after {show(now_fs, 'femtoseconds')}, and its "
            f"firmware allows {show(self._thermal.shutdown, 'celsius')}; the room has {self.network.ambient:g} °C, the "
            f"thermal policy is '{self.policy.name}'; enable it anew in a cooler room (ambient) or with another policy"
        )
        raise errors.DeviceError("DSF-D021", self._off)

    # where it comes from

    def pointers(self) -> dict[str, list[str]]:
        """The numbers of the HDL that go into each group, beside those of the kernels' times."""
        thermal, power = self._thermal, ["/power/states/idle", *(f"/power/engines/{e}" for e in self._power.engines)]
        power += ["/power/memory"] if self._power.memory else []
        room = ["/thermal/ambient"] if self.ambient is None else []
        network = [f"/thermal/nodes/{node}" for node in thermal.nodes]
        network += [f"/thermal/edges/{a}->{b}" for a, b in thermal.edges]
        clocks = ["/thermal/control/cap", "/thermal/control/period", "/thermal/throttle/hysteresis"]
        clocks += [f"/thermal/throttle/ladder/{i}/{key}" for i in range(len(thermal.ladder)) for key in RUNG]
        clocks += ["/power/frequencies"] if len(self._power.frequencies) > 1 else []
        clocks += ["/power/voltage_floor"] if self._power.voltage_floor != 1 else []
        return {
            "power": power,
            "ambient": room,
            "temperature": [*power, *room, *network],
            "throttling": [*power, *room, *network, *clocks],
        }
