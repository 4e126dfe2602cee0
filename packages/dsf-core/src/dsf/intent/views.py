"""Windows looked at in another way: broadcast, transposed, regrouped. Shapes and strides change, no value moves."""

from __future__ import annotations

from math import prod

from dsf.intent.tape import Region, Window
from dsf.isa.program import contiguous

__all__ = [
    "broadcast_shapes", "expand", "extent", "is_contiguous", "narrow", "overlap", "permute",
    "reshape", "same", "transposed", "unsqueeze", "view",
]  # fmt: skip


def view(region: Region, shape: tuple[int, ...], stride: tuple[int, ...], offset: int | None = None) -> Region:
    """Another window of the same buffer and dtype."""
    window = region.window
    return Region(region.buffer, Window(shape, stride, window.offset if offset is None else offset, window.dtype))


def same(a: Region, b: Region) -> bool:
    """Do *a* and *b* name the same elements in the same order? (The stride of a dimension of size 1 means nothing.)"""
    if a.buffer != b.buffer:
        return False
    if a.window is b.window or a.window == b.window:
        return True
    if a.shape != b.shape or a.dtype != b.dtype or a.offset != b.offset:
        return False
    return all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride, b.stride, strict=True))


def is_contiguous(region: Region) -> bool:
    """Row-major without gaps."""
    dense = contiguous(region.shape)
    return all(n == 1 or s == t for n, s, t in zip(region.shape, region.stride, dense, strict=True))


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all *shapes* broadcast to; ValueError if there is none."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[axis] not in (1, size):
                raise ValueError(f"shapes {shapes} do not broadcast")
            result[axis] = size if size != 1 else result[axis]
    return tuple(result)


def expand(region: Region, shape: tuple[int, ...]) -> Region:
    """*region* broadcast to *shape*, by stride 0; ValueError if it does not broadcast."""
    if region.shape == shape:
        return region
    lead = len(shape) - len(region.shape)
    if lead < 0:
        raise ValueError(f"{region.shape} does not broadcast to {shape}")
    strides = [0] * lead
    for have, want, stride in zip(region.shape, shape[lead:], region.stride, strict=True):
        if have not in (1, want):
            raise ValueError(f"{region.shape} does not broadcast to {shape}")
        strides.append(stride if have == want else 0)
    return view(region, shape, tuple(strides))


def unsqueeze(region: Region, axis: int) -> Region:
    """*region* with a dimension of size 1 before *axis* (negative: counted in the result)."""
    axis = axis if axis >= 0 else axis + len(region.shape) + 1
    shape, stride = list(region.shape), list(region.stride)
    shape.insert(axis, 1)
    stride.insert(axis, 0)
    return view(region, tuple(shape), tuple(stride))


def permute(region: Region, axes: tuple[int, ...]) -> Region:
    return view(region, tuple(region.shape[a] for a in axes), tuple(region.stride[a] for a in axes))


def transposed(region: Region) -> Region:
    """The last two dimensions swapped."""
    rank = len(region.shape)
    return permute(region, (*range(rank - 2), rank - 1, rank - 2))


def narrow(region: Region, axis: int, start: int, size: int) -> Region:
    """Elements *start* to *start + size* along *axis*."""
    axis %= len(region.shape)
    shape = (*region.shape[:axis], size, *region.shape[axis + 1 :])
    return view(region, shape, region.stride, region.offset + start * region.stride[axis])


def reshape(region: Region, shape: tuple[int, ...]) -> Region | None:
    """A contiguous region under another shape; None if it is not contiguous or the sizes differ."""
    if prod(shape) != region.numel or not is_contiguous(region):
        return None
    return view(region, shape, contiguous(shape))


def extent(region: Region) -> tuple[int, int]:
    """First byte and the byte after the last one that *region* touches in its buffer; empty if it has no element."""
    if region.numel == 0:
        return 0, 0
    size = region.dtype.itemsize
    last = region.offset + sum((n - 1) * s for n, s in zip(region.shape, region.stride, strict=True))
    return region.offset * size, (last + 1) * size


def overlap(a: Region, b: Region) -> bool:
    """May *a* and *b* share a byte? (By extent: interleaved windows count as overlapping.)"""
    if a.buffer != b.buffer:
        return False
    (first_a, end_a), (first_b, end_b) = extent(a), extent(b)
    return first_a < end_b and first_b < end_a
