"""A function declared to mean an intent is one operation on the device, itself elsewhere, and held to its word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dsf
from dsf import device, errors
from dsf.declare.samples import DECLARABLE
from dsf.intent import KINDS

BLOCK = 3


@dsf.intent("rms_norm", compute=torch.float32, weight_after_cast=True)
def odd_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """RMSNorm by a norm and a division, as no model of transformers writes it."""
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True) / wide.shape[-1] ** 0.5
    return weight * (wide / (length * length + eps).sqrt()).to(x.dtype)


@dsf.intent(
    "attention", groups=lambda q, k, *rest: q.shape[1] // k.shape[1], scale=lambda q, *rest: q.shape[-1] ** -0.5
)
def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True) -> torch.Tensor:
    """Attention over blocks of keys with a running maximum and sum [Dao et al. 2022, arXiv 2205.14135, algorithm 1]."""
    repeats = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(repeats, 1).float(), v.repeat_interleave(repeats, 1).float()
    wide = q.float() * q.shape[-1] ** -0.5
    highest = torch.full((*q.shape[:-1], 1), -torch.inf)
    total, result = torch.zeros_like(highest), torch.zeros((*q.shape[:-1], v.shape[-1]))
    rows = torch.arange(q.shape[2]).unsqueeze(-1)
    for start in range(0, k.shape[2], BLOCK):
        scores = wide @ keys[:, :, start : start + BLOCK].mT
        columns = torch.arange(start, min(start + BLOCK, k.shape[2]))
        if causal:
            scores = scores.masked_fill(columns > rows, -torch.inf)
        above = torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights, scale = (scores - above).exp(), (highest - above).exp()
        total = total * scale + weights.sum(-1, keepdim=True)
        result = result * scale + weights @ values[:, :, start : start + BLOCK]
        highest = above
    return (result / total).to(q.dtype)


@dsf.intent("paged_attention", groups=1, scale=lambda q, *rest: q.shape[-1] ** -0.5)
def paged(q, k, v, table, lengths):
    """One sequence after the other, its pages side by side."""
    answers = []
    for one, pages, length in zip(q, table, lengths, strict=True):
        keys, values = (t[pages.long()].flatten(0, 1)[: int(length)].transpose(0, 1) for t in (k, v))
        seen = torch.ones(one.shape[1], int(length), dtype=torch.bool).tril(int(length) - one.shape[1])
        answers.append(F.scaled_dot_product_attention(one, keys, values, attn_mask=seen))
    return torch.stack(answers)


@dsf.intent("scaled_linear", transposed=True)
def w8a8(x, w, x_scale, w_scale):
    return (x.double() @ w.double().T).float() * x_scale * w_scale


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]], str]] = {
    "a norm": (odd_norm, lambda: (torch.randn(4, 32), torch.randn(32)), "rms_norm"),
    "flash attention": (
        flash,
        lambda: (torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)),
        "attention",
    ),
    "paged attention": (
        paged,
        lambda: (
            torch.randn(2, 4, 1, 16), torch.randn(6, 4, 4, 16), torch.randn(6, 4, 4, 16),
            torch.tensor([[5, 0], [2, 3]]), torch.tensor([7, 3]),
        ),
        "paged_attention",
    ),
    "W8A8": (
        w8a8,
        lambda: (
            torch.randint(-128, 128, (3, 16), dtype=torch.int8), torch.randint(-128, 128, (8, 16), dtype=torch.int8),
            torch.rand(3, 1) / 64, torch.rand(8) / 64,
        ),
        "scaled_linear",
    ),
}  # fmt: skip


@pytest.fixture
def npu(described: Callable[..., Path]) -> Iterator[Callable[..., Any]]:
    """`npu(fidelity)`: a session on a chip whose device is `npu`, the one name that this process may have."""

    def enabled(fidelity: str = "isa") -> Any:
        dsf.disable()
        device.detach()
        return dsf.enable(str(described({"/device": "npu"})), fidelity=fidelity)

    torch.manual_seed(0)
    yield enabled
    dsf.disable()


@pytest.mark.parametrize("fidelity", ["isa", "operator"])
@pytest.mark.parametrize("name", CASES)
def test_custom_code_is_one_intent_with_the_functions_numbers(name: str, fidelity: str, npu) -> None:
    function, make, kind = CASES[name]
    arguments = make()
    wanted = function(*arguments)
    session = npu(fidelity)
    with session.listening() as flushes:
        found = function(*(a.to("npu") for a in arguments)).cpu()
    assert [intent.kind for flush in flushes for intent in flush] == [kind]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["a norm", "flash attention"])
def test_custom_code_gets_a_kernel_of_the_chip(name: str, npu) -> None:
    function, make, kind = CASES[name]
    npu()
    function(*(a.to("npu") for a in make())).cpu()
    report = dsf.report()
    assert [row.intent for row in report.kernels] == [kind]
    assert report.fallbacks == ()


def test_off_the_device_the_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    @dsf.intent("softmax", dim=-1, log=False)
    def mine(x):
        called.append(x)
        return x

    x = torch.randn(3)
    assert mine(x) is x
    assert called == [x]
    assert mine.__name__ == "mine"


def test_it_trains_through_the_function(npu) -> None:
    x, weight = torch.randn(4, 32), torch.randn(32)
    gradients = []
    npu("operator")
    for where in ("cpu", "npu"):
        a, w = (t.detach().clone().to(where).requires_grad_() for t in (x, weight))
        odd_norm(a, w).square().sum().backward()
        gradients.append((a.grad.cpu(), w.grad.cpu()))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def test_autocast_and_transforms_see_the_function_itself(npu) -> None:
    npu("operator")

    @dsf.intent("matmul")
    def product(a, b):
        return a @ b

    a, b = torch.randn(2, 3, 4).to("npu"), torch.randn(4, 5).to("npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert product(a[0], b).dtype is torch.bfloat16
    assert torch.vmap(product, in_dims=(0, None))(a, b).shape == (2, 3, 5)


def test_the_meaning_is_checked_once_for_each_form_of_the_operands(npu) -> None:
    calls = []

    @dsf.intent("softmax", dim=lambda x: x.dim() - 1, log=False)
    def mine(x):
        calls.append(tuple(x.shape))
        return x.softmax(-1)

    npu("operator")
    for shape in ((2, 3), (2, 3), (4, 3), (2, 3)):
        mine(torch.randn(shape).to("npu"))
    assert calls == [(2, 3), (4, 3)]


def test_an_attribute_that_the_call_changes_is_another_form(npu) -> None:
    session = npu("operator")
    x, w = torch.randn(2, 4).to("npu"), torch.randn(4).to("npu")
    with session.listening() as flushes:
        a, b = odd_norm(x, w), odd_norm(x, w, eps=0.5)
        torch.testing.assert_close([a.cpu(), b.cpu()], [odd_norm(x.cpu(), w.cpu(), e) for e in (1e-5, 0.5)])
    assert [i.attr("eps") for flush in flushes for i in flush] == [1e-5, 0.5]


def test_a_mask_that_broadcasts_is_taken(npu) -> None:
    @dsf.intent("attention", causal=False, groups=1, scale=0.25)
    def attend(q, k, v, mask=None):
        scores = q @ k.mT * 0.25
        return (scores if mask is None else scores + mask).softmax(-1) @ v

    npu("operator")
    q, k, v = (torch.randn(1, 2, 5, 16) for _ in range(3))
    mask = torch.randn(1, 1, 5, 5)
    for given in ((q, k, v), (q, k, v, mask)):
        torch.testing.assert_close(attend(*(t.to("npu") for t in given)).cpu(), attend(*given), rtol=1e-4, atol=1e-5)


def test_nothing_of_an_empty_tensor_is_the_functions_business(npu) -> None:
    npu("operator")
    assert odd_norm(torch.randn(0, 4).to("npu"), torch.randn(4).to("npu")).shape == (0, 4)


def test_a_function_that_means_something_else_is_told_where_and_by_how_much(npu) -> None:
    @dsf.intent("rms_norm", compute=torch.float32, weight_after_cast=True)
    def forgets_the_weight(x, weight, eps=1e-5):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) + 0 * weight

    npu("operator")
    with pytest.raises(
        errors.MeaningError,
        match=r"^DSF-T010: .*forgets_the_weight does not mean a rms_norm: for random x \(2, 8\), weight \(8,\) its y "
        r"at \(\d, \d\) is -?[\d.]+, a rms_norm with compute=float32, eps=1e-05, weight_after_cast=True gives -?[\d.]+"
        r", and [\d.e-]+ of difference is allowed in float32; a rms_norm is n = x \* rsqrt",
    ):
        forgets_the_weight(torch.randn(2, 8).to("npu"), torch.randn(8).to("npu"))


def test_a_causal_attention_is_no_full_one(npu) -> None:
    @dsf.intent("attention", causal=False, groups=1, scale=0.25)
    def wrong(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)

    npu("operator")
    with pytest.raises(errors.MeaningError, match=r"^DSF-T010: .*causal=False"):
        wrong(*(torch.randn(1, 2, 5, 16).to("npu") for _ in range(3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_part_in_a_hundred_is_too_much(dtype: torch.dtype, npu) -> None:
    """Between what a dtype's roundings do and a wrong formula lies this: bfloat16 rounds to one part in 256."""
    by = {torch.float32: 1.001, torch.float16: 1.01, torch.bfloat16: 1.1}[dtype]

    @dsf.intent("softmax", dim=1, log=False)
    def scaled(x):
        return x.softmax(-1) * by

    npu("operator")
    with pytest.raises(errors.MeaningError, match=r"^DSF-T010"):
        scaled(torch.randn(4, 4).to(dtype).to("npu"))


def _changes(x, weight, eps):
    x.add_(1)
    return x


def _fails(x, weight, eps):
    raise KeyError("nothing")


BROKEN: dict[str, tuple[Callable[..., Any], str]] = {
    "changes": (_changes, "DSF-T009: _changes changes its operand x; a rms_norm changes none"),
    "fails": (_fails, "DSF-T008: _fails is checked on the CPU and fails there (KeyError: 'nothing')"),
    "two": (
        lambda x, weight, eps: (x, x),
        "DSF-T007: <lambda> gives (Tensor, Tensor); a rms_norm gives (y), all tensors",
    ),
    "shape": (lambda x, weight, eps: x[0], "DSF-T007: <lambda> is no rms_norm: y has shape (8,); expected (2, 8)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_function_that_is_no_such_kind_has_its_sentence(case: str, npu) -> None:
    function, sentence = BROKEN[case]
    npu("operator")
    call = dsf.intent("rms_norm", compute=torch.float32, weight_after_cast=True)(function)
    with pytest.raises(errors.MeaningError, match=re.escape(sentence)):
        call(torch.randn(2, 8).to("npu"), torch.randn(8).to("npu"), 1e-5)


def test_operands_that_fit_no_such_kind_have_the_kinds_own_words(npu) -> None:
    npu("operator")
    with pytest.raises(errors.MeaningError, match=r"^DSF-T007: odd_norm is no rms_norm: weight has shape \(1,\)"):
        odd_norm(torch.randn(2, 8).to("npu"), torch.randn(1).to("npu"))


def test_an_attribute_of_no_such_kind_is_said(npu) -> None:
    npu("operator")
    gated = dsf.intent("gated_activation", act="swish")(lambda gate, up: F.silu(gate) * up)
    with pytest.raises(errors.MeaningError, match=r"^DSF-T007: <lambda>: no gated_activation has .*act=swish .KeyE"):
        gated(torch.randn(4).to("npu"), torch.randn(4).to("npu"))


def test_an_operand_that_is_no_tensor_is_named(npu) -> None:
    npu("operator")
    with pytest.raises(
        errors.MeaningError, match=r"^DSF-T006: odd_norm: weight of a rms_norm is a tensor; found float$"
    ):
        odd_norm(torch.randn(2, 8).to("npu"), 1.0)


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: dsf.intent(len), r'^DSF-T001: write @dsf\.intent\("rms_norm", \.\.\.\): the kind first'),
        (lambda: dsf.intent(), r"^DSF-T001: "),
        (
            lambda: dsf.intent("rmsnorm"),
            r"^DSF-T002: the kind of intent 'rmsnorm' is unknown; did you mean 'rms_norm'\?",
        ),
        (lambda: dsf.intent("opaque"), r"^DSF-T002: the kind of intent 'opaque' is not one that a function can mean; "),
        (lambda: dsf.intent("softmax", axis=1), r"^DSF-T003: a softmax has no attribute 'axis'; it has dim, log$"),
        (lambda: dsf.intent("softmax", dim=1, log=False)(lambda: 0), r"^DSF-T004: <lambda> has the operands \(\); a "),
        (lambda: dsf.intent("softmax", dim=1, log=False)(lambda x, y: 0), r"^DSF-T004: .*a softmax has \(x\), in that"),
        (
            lambda: dsf.intent("softmax", dim=1)(lambda x: 0),
            r"^DSF-T005: <lambda>: a softmax has the attribute log too",
        ),
    ],
)
def test_what_cannot_be_declared_is_said_at_once(declare: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(errors.MeaningError, match=sentence):
        declare()


FORMS = """
import sys
import dsf
assert "torch" not in sys.modules, "import dsf is light"
{form}
import torch
@dsf.intent("softmax", dim=0, log=False)
def mine(x):
    return x
assert mine(3) == 3
from dsf.intent import parse
import dsf.intent as package
assert package is dsf.intent and package.parse is parse
"""


@pytest.mark.parametrize("form", ["", "import dsf.intent", "from dsf import intent", "from dsf.intent import KINDS"])
def test_the_package_and_the_decorator_are_one_however_imported(form: str, run_python: Callable[..., Any]) -> None:
    run_python(FORMS.format(form=form))


def test_every_kind_that_can_be_declared_is_documented_with_its_operands() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/python.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \| `", page, re.MULTILINE))
    assert rows == {kind: " ".join(KINDS[kind].inputs) for kind in DECLARABLE}


def test_an_unknown_name_of_dsf_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'dsf' has no attribute 'intents'$"):
        dsf.intents  # noqa: B018
