"""What tests of the river share: a chip described by changes to the invented one, a session on it, a tape written by
hand, a fresh Python, and a small decoder in plain torch."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import define, evolve, field
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from dsf import enabling, hdl
from dsf.device.tape import intern
from dsf.hdl import Chip
from dsf.intent.tape import Buffer, Op, Region, Scope, Site, Slot, Tape, Window
from dsf.pipeline import Session
from dsf.plugins import Registry

ACME = json.loads(Path(hdl.load("acme-x1").path).read_text("utf-8"))


@pytest.fixture
def described(tmp_path: Path) -> Callable[..., Path]:
    """Writes the invented chip's description, changed at JSON pointers (None drops what is there), to a file."""

    def described(changes: dict[str, Any] | None = None, name: str = "acme-x1") -> Path:
        document = copy.deepcopy(ACME)
        for pointer, value in {"/name": name, **(changes or {})}.items():
            *parents, last = pointer.split("/")[1:]
            node: Any = document
            for key in parents:
                node = node[key]
            if value is None:
                del node[last]
            else:
                node[last] = value
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(document), "utf-8")
        return path

    return described


@pytest.fixture
def session_on() -> Callable[..., Session]:
    """A session on a chip (the invented one unless named) that no device is attached to."""

    def session_on(chip: str | Path | Chip = "acme-x1", **options: Any) -> Session:
        return Session(Registry().view(chip if isinstance(chip, Chip) else hdl.load(chip)), **options)

    return session_on


@define(eq=False)
class Hand:
    """A tape written by hand. Tensors are regions; the shapes of results are torch's own, from meta tensors."""

    session: Session
    file: str = "model.py"
    ops: list[Op] = field(factory=list)
    buffers: list[Buffer] = field(factory=list)

    def put(self, value: torch.Tensor) -> Region:
        """*value* on the device, as the user's copy puts it there."""
        address = self.session.allocate(max(value.nbytes, 1), None)
        self.session.write(address, value.contiguous())
        return self._region(value.contiguous(), address, live=True)

    def op(self, target: str, *args: Any, keep: bool = False, line: int = 1, scope: str = "", **kwargs: Any) -> Any:
        """Record an operation; *keep* holds its results beyond the tape."""
        function: Any = torch.ops.aten
        for part in target.split("."):
            function = getattr(function, part)
        result = function(*tree_map(_meta, args, is_leaf=_is_region), **tree_map(_meta, kwargs, is_leaf=_is_region))
        made = [self._region(t, None, live=keep) for t in tree_leaves(result)]
        given: list[Region] = []
        template, named = self._template(args, given), self._template(tuple(kwargs.values()), given)
        new = tuple(range(len(given), len(given) + len(made)))
        regions = (*given, *made)
        signature = intern(
            f"aten.{target}",
            template,
            tuple(zip(kwargs, named, strict=True)),
            tuple(r.window for r in regions),
            new,
            new,
        )
        path = Scope(scope, "Module") if scope else Scope()
        self.ops.append(Op(signature, tuple(r.buffer for r in regions), path, Site(self.file, line)))
        return made[0] if len(made) == 1 else tuple(made)

    def write(self, target: str, into: Region, *args: Any, line: int = 1, scope: str = "") -> Region:
        """Record an operation that writes its first argument in place."""
        given: list[Region] = []
        template = self._template((into, *args), given)
        signature = intern(f"aten.{target}", template, (), tuple(r.window for r in given), (0,), (0,))
        path = Scope(scope, "Module") if scope else Scope()
        self.ops.append(Op(signature, tuple(r.buffer for r in given), path, Site(self.file, line)))
        return into

    def keep(self, region: Region) -> Region:
        """Something outside the tape holds *region*."""
        self.buffers[region.buffer] = evolve(self.buffers[region.buffer], live=True)
        return region

    def tape(self) -> Tape:
        return Tape(tuple(self.ops), tuple(self.buffers))

    def run(self) -> None:
        """Run what was recorded; what lives has an address from then on."""
        for number, address in self.session.run(self.tape()).items():
            self.buffers[number] = evolve(self.buffers[number], address=address)
        self.ops.clear()

    def value(self, region: Region) -> torch.Tensor:
        """The bytes of a buffer that has an address."""
        address = self.buffers[region.buffer].address
        assert address is not None, "nothing outside the tape holds it"
        return self.session.peek(address, region.window).clone()

    def _region(self, like: torch.Tensor, address: int | None, live: bool) -> Region:
        self.buffers.append(Buffer(like.untyped_storage().nbytes(), address, live))
        return Region(len(self.buffers) - 1, Window(tuple(like.shape), like.stride(), 0, like.dtype))

    def _template(self, value: Any, given: list[Region]) -> Any:
        if isinstance(value, Region):
            given.append(value)
            return Slot(len(given) - 1)
        return tuple(self._template(v, given) for v in value) if isinstance(value, tuple | list) else value


def _is_region(value: Any) -> bool:
    return isinstance(value, Region)


def _meta(value: Any) -> Any:
    if not isinstance(value, Region):
        return value
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")


@pytest.fixture
def hand() -> Callable[[Session], Hand]:
    return Hand


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run a snippet in a fresh Python, with these variables in its environment; its stdout, stripped."""

    def run_python(code: str, **variables: str) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DSF_")} | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=environment | variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run_python


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Grouped queries, rotary positions, a causal mask."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.dim = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, width // groups, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.before, self.after = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, heads, groups)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), cos, sin)
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A language model of the Llama kind, small enough to run in a second."""

    def __init__(self, layers: int = 2, width: int = 64, heads: int = 4, groups: int = 2, inner: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, inner) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, 96, bias=False)
        turns = torch.outer(torch.arange(64), 1e4 ** -torch.linspace(0, 1, width // heads // 2))
        self.register_buffer("cos", torch.cat((turns, turns), -1).cos())
        self.register_buffer("sin", torch.cat((turns, turns), -1).sin())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, length = self.embed(ids), ids.shape[-1]
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.head(self.norm(x))


@pytest.fixture
def decoder() -> Callable[..., Decoder]:
    """A decoder with the same weights at every call."""

    def decoder(**sizes: int) -> Decoder:
        torch.manual_seed(0)
        return Decoder(**sizes).eval()

    return decoder


@pytest.fixture
def enabled(described: Callable[..., Path]) -> Iterator[Callable[..., Session]]:
    """Enable the invented chip, changed as given, as this process's `npu`; it is disabled afterwards."""

    def enabled(changes: dict[str, Any] | None = None, **options: Any) -> Session:
        path = described({"/device": "npu", **(changes or {})})
        return enabling.enable(str(path), **{"fidelity": "isa", "strict": False, "exact": False, **options})

    enabling.disable()
    yield enabled
    enabling.disable()
