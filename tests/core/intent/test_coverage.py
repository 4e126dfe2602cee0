"""Coverage counts what lies in named intents, and names what does not, with the reason."""

from __future__ import annotations

import json

import torch
from torch.nn import functional as F

from dsf.intent.coverage import Coverage, OpaqueRow, coverage
from dsf.intent.graph import Graph
from dsf.intent.operators import opaque


def covered(recording) -> Coverage:
    return coverage([(len(recording.tape.ops), recording.parsed())])


def kept(found: Coverage) -> list[tuple[str, int, int, int]]:
    return [(row.kind, row.intents, row.operations, row.flops) for row in found.kinds]


def test_every_recorded_operation_counts_however_many_an_intent_covers(record):
    """(x + 1) * 2 is two operations and one intent; the linear has 2 x 3 x 5 x 4 FLOPs."""
    found = covered(record(lambda x, w: F.linear((x + 1) * 2, w), torch.randn(3, 4), torch.randn(5, 4)))
    assert kept(found) == [("linear", 1, 1, 120), ("elementwise", 1, 2, 0)]
    assert (found.operations, found.named_operations, found.operations_share) == (3, 3, 1.0)
    assert (found.flops, found.named_flops, found.flops_share) == (120, 120, 1.0)
    assert found.opaque == ()


def test_what_is_opaque_is_listed_with_its_count_and_reason(record):
    def step(x, a):
        return torch.trace(a), torch.trace(a + 1), x + 1

    found = covered(record(step, torch.randn(3), torch.eye(3)))
    (row,) = found.opaque
    assert (row.target, row.count, row.why) == ("aten.trace.default", 2, "no kind of intent means this operator")
    assert (found.operations, found.named_operations) == (4, 2)
    assert found.operations_share == 0.5


def test_flops_of_opaque_operations_are_not_named(record):
    """The product by experts, which torch's own counter does not know, counts while it is opaque: 16 rows, 16 x 8."""
    x, w = torch.randn(16, 16, dtype=torch.bfloat16), torch.randn(2, 16, 8, dtype=torch.bfloat16)
    recording = record(torch._grouped_mm, x, w, torch.tensor([8, 16], dtype=torch.int32))
    whole = opaque(Graph(recording.tape).nodes[0])
    found = coverage([(1, (whole,))])
    assert (found.flops, found.named_flops, found.flops_share) == (2 * 16 * 8 * 16, 0, 0.0)
    assert found.opaque[0].flops == found.flops


def test_groups_count_wholes_and_members(record):
    def ffn(x, gate, up, down):
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    one = record(ffn, torch.randn(3, 4), torch.randn(8, 4), torch.randn(8, 4), torch.randn(4, 8))
    found = coverage([(len(one.tape.ops), one.parsed())] * 2)
    assert [(row.kind, row.groups, row.intents) for row in found.groups] == [("gated_ffn", 2, 8)]
    assert found.operations == 10


def test_shared_intents_of_equal_layers_count_each_time(record):
    one = record(F.linear, torch.randn(3, 4), torch.randn(5, 4))
    intents = one.parsed()
    assert coverage([(1, intents), (1, intents)]).flops == 240


def test_an_empty_step_is_covered():
    found = coverage([])
    assert (found.operations_share, found.flops_share) == (1.0, 1.0)


def test_the_plain_data_holds_everything(record):
    found = covered(record(torch.trace, torch.eye(3)))
    data = json.loads(json.dumps(found.to_json()))
    assert data["operations_share"] == 0.0
    assert data["opaque"] == [
        {"target": row.target, "count": 1, "flops": 0, "scope": "", "why": row.why} for row in found.opaque
    ]
    assert data["kinds"] == [{"kind": "opaque", "intents": 1, "operations": 1, "flops": 0}]
    assert isinstance(found.opaque[0], OpaqueRow)
