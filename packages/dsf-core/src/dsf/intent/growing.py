"""A step that grows: from two recordings of it, what it is at any length.

A decode step does the same at every length of its KV cache; only sizes, strides, offsets and positions differ, and each
of them is a line in the length. Two recorded steps say which numbers those are and how fast they grow.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, field, frozen

from dsf import errors
from dsf.intent.ir import Intent
from dsf.intent.tape import Region, Window

__all__ = ["Growing"]


@frozen(eq=False)
class Growing:
    """The intents of one step recorded at length *a* and at length *b*; they must differ in whole numbers only."""

    first: tuple[Intent, ...]
    second: tuple[Intent, ...]
    a: int
    b: int
    _moving: dict[int, tuple[Intent, Intent]] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.a == self.b:
            raise errors.IntentError("DSF-E001", f"both steps were recorded at length {self.a}; record two lengths")
        if len(self.first) != len(self.second):
            raise errors.IntentError(
                "DSF-E002",
                f"the step has {len(self.first)} intents at length {self.a} and {len(self.second)} at {self.b}; "
                "record two steps that do the same",
            )
        for number, (one, other) in enumerate(zip(self.first, self.second, strict=True)):
            if one is other or id(one) in self._moving:
                continue
            self._line(one, other, self.b, f"intent {number} ({one.kind})")  # says what does not fit
            if _body(one) != _body(other):
                self._moving[id(one)] = one, other

    def at(self, length: int) -> tuple[Intent, ...]:
        """The step's intents at *length*; those that do not depend on it are the recorded ones."""
        made = {number: self._line(one, other, length, one.kind) for number, (one, other) in self._moving.items()}
        return tuple([made.get(id(intent), intent) for intent in self.first])

    def _line(self, one: Intent, other: Intent, length: int, where: str) -> Intent:
        if one.kind != other.kind or len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
            raise errors.IntentError(
                "DSF-E002", f"{where}: {one} at length {self.a}, {other} at {self.b}; record two steps that do the same"
            )
        return evolve(
            one,
            inputs=self._value(one.inputs, other.inputs, length, where),
            outputs=self._value(one.outputs, other.outputs, length, where),
            attrs=self._value(one.attrs, other.attrs, length, where),
        )

    def _value(self, one: Any, other: Any, length: int, where: str) -> Any:
        """*one* and *other* as points of a line: the value at *length*."""
        if type(one) is type(other):
            if isinstance(one, tuple) and len(one) == len(other):
                return tuple([self._value(x, y, length, where) for x, y in zip(one, other, strict=True)])
            if isinstance(one, Region):
                return Region(one.buffer, self._value(one.window, other.window, length, where))
            if isinstance(one, Window) and one.dtype == other.dtype:
                shape, stride, offset = (
                    self._value(getattr(one, part), getattr(other, part), length, where)
                    for part in ("shape", "stride", "offset")
                )
                return Window(shape, stride, offset, one.dtype)
            if type(one) is int and (other - one) % (self.b - self.a) == 0:
                return one + (other - one) // (self.b - self.a) * (length - self.a)
            if one == other:
                return one
        raise errors.IntentError(
            "DSF-E003", f"{where}: {one} at length {self.a} and {other} at {self.b} lie on no line of whole numbers"
        )


def _body(intent: Intent) -> tuple[Any, ...]:
    return intent.inputs, intent.outputs, intent.attrs
