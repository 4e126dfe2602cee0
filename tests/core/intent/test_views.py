"""Window arithmetic against torch's own."""

from __future__ import annotations

import pytest
import torch

from dsf.intent import Region, Window, views


def region(tensor: torch.Tensor) -> Region:
    return Region(0, Window(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype))


BASE = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda r: views.expand(views.narrow(r, 0, 1, 1), (5, 2, 3, 4)), lambda t: t[1:2].expand(5, 2, 3, 4)),
        (lambda r: views.permute(r, (2, 0, 1)), lambda t: t.permute(2, 0, 1)),
        (views.transposed, lambda t: t.mT),
        (lambda r: views.narrow(r, -1, 1, 2), lambda t: t[..., 1:3]),
        (lambda r: views.unsqueeze(r, -1), lambda t: t.unsqueeze(-1)),
        (lambda r: views.reshape(r, (6, 4)), lambda t: t.reshape(6, 4)),
    ],
)
def test_a_view_names_the_elements_torch_names(ours, theirs):
    window = ours(region(BASE)).window
    torch.testing.assert_close(BASE.as_strided(window.shape, window.stride, window.offset), theirs(BASE))


def test_shapes_that_do_not_broadcast_are_refused():
    assert views.broadcast_shapes((3, 1), (4,)) == (3, 4)
    with pytest.raises(ValueError, match="do not broadcast"):
        views.broadcast_shapes((3, 2), (4,))
    with pytest.raises(ValueError, match="does not broadcast"):
        views.expand(region(BASE), (2, 3, 5))


def test_a_strided_region_has_no_other_shape():
    assert views.reshape(region(BASE.mT), (6, 4)) is None


def test_overlap_is_judged_by_extent():
    rows = region(BASE[0]), region(BASE[1])
    assert not views.overlap(*rows)
    assert views.overlap(region(BASE[..., 0]), region(BASE[..., 1]))
    assert not views.overlap(rows[0], Region(1, rows[0].window))


def test_two_windows_of_one_element_are_the_same_whatever_the_stride():
    assert views.same(region(BASE[:1]), Region(0, Window((1, 3, 4), (99, 4, 1), 0, torch.float32)))
    assert not views.same(region(BASE[:1]), region(BASE[1:]))
