"""Every limit of every kernel refuses what breaks it, in its own words, and the host's note has them."""

from __future__ import annotations

import torch

GAP = 2 * 1024 * 1024  # elements of 16 bits: 4 MB from row to row, where a copy's gap field ends at 2 MB


def linear(bench, x, w, out=None, **attrs):
    return bench.intent("linear", [x, w], [bench.out((*x.shape[:-1], w.shape[0]), x.dtype) if out is None else out],
                        has_bias=False, transposed=True, **attrs)  # fmt: skip


def matmul(bench, a, b, out=None):
    return bench.intent("matmul", [a, b], [bench.out((*a.shape[:-1], b.shape[-1]), a.dtype) if out is None else out])


def attention(bench, q, k, v, **attrs):
    groups = q.shape[1] // max(k.shape[1], 1)
    outputs = [bench.out((*q.shape[:3], v.shape[3]), q.dtype)]
    return bench.intent(
        "attention", [q, k, v], outputs, causal=False, groups=groups, has_mask=False, scale=1.0, **attrs
    )


def half(*shape):
    return torch.randn(shape).half()


def far(*shape):
    """Rows that lie further apart than a copy can skip."""
    stride = (*(GAP * shape[-2] for _ in shape[:-2]), GAP, 1)
    return torch.empty((shape[-2] - 1) * GAP + shape[-1]).half().as_strided(shape, stride)


def rms_norm(bench, dtype=torch.float16, compute=torch.float32):
    x = torch.randn(2, 4).to(dtype)
    return bench.intent(
        "rms_norm", [x, x[0]], [bench.out((2, 4), dtype)], eps=1e-5, compute=compute, weight_after_cast=True
    )


def rotary(bench, width, dtype=torch.float16, **attrs):
    x = torch.randn(2, width).to(dtype)
    return bench.intent("rotary", [x, x, x], [bench.out((2, width), dtype)], style="half", **attrs)


BY_INDEX = ("index", "gather", "scatter", "index_put", "kv_append")


def by_index(bench, kind, dtype, same=False):
    """Rows 0 and 1 of a square of halves, by an index of *dtype*; *same*: what is put is the result itself."""
    x, line, square = half(2, 2), torch.tensor([0, 1]).to(dtype), torch.tensor([[0, 1], [0, 1]]).to(dtype)
    y = bench.out((2, 2), x.dtype)
    src = y if same else half(2, 2)
    inputs, attrs = {
        "index": ([x, line], {"dims": (0,)}),
        "gather": ([x, square], {"dim": 0}),
        "scatter": ([x, square, src], {"dim": 0, "has_src": True, "reduce": None, "value": None}),
        "index_put": ([x, src, line], {"accumulate": False, "dims": (0,)}),
        "kv_append": ([x, src, line], {"dim": 0}),
    }[kind]
    return bench.intent(kind, inputs, [y], **attrs)


def counted(bench, x, bins=4, high=1):
    return bench.intent("histogram", [x], [bench.out((bins,), x.dtype)], bins=bins, low=0, high=high)


def grouped(bench, x=None, w=None, ends=None, out=None):
    """Experts of (4, 5)."""
    x, w = half(2, 5) if x is None else x, half(3, 4, 5) if w is None else w
    ends = torch.tensor([1, 1, 2]) if ends is None else ends
    out = bench.out((x.shape[0], 4), x.dtype) if out is None else out
    return bench.intent("grouped_linear", [x, w, ends], [out], transposed=True)


def add_norm(bench, kind, dtype, compute=torch.float32):
    x = torch.ones(2, 4).to(dtype)
    outs = [bench.out((2, 4), dtype), bench.out((2, 4), dtype)]
    if kind == "add_layer_norm":
        return bench.intent(kind, [x, x], outs, axes=1, eps=0.0, has_weight=False, has_bias=False)
    return bench.intent(kind, [x, x, x[0]], outs, eps=1e-5, compute=compute, weight_after_cast=True)


def group_norm(bench, x):
    out = bench.out(x.shape, x.dtype)
    return bench.intent("group_norm", [x], [out], groups=2, eps=0.0, has_weight=False, has_bias=False)


def bytes_(*shape):
    return torch.ones(shape, dtype=torch.int8)


def far_bytes():
    return torch.empty(4 * GAP + 4).char().as_strided((3, 4), (2 * GAP, 1))


def whole(bench, x, w, **attrs):
    return linear(bench, x, w, bench.out((x.shape[0], w.shape[0]), torch.int32), **attrs)


def scaled(bench, x, w, rows=None):
    rows = half(x.shape[0], 1) if rows is None else rows
    out = bench.out((x.shape[0], w.shape[0]), torch.float16)
    return bench.intent("scaled_linear", [x, w, rows, half(w.shape[0])], [out], has_bias=False, transposed=True)


def quantised(bench, x, w, group=2):
    out, scale = bench.out((x.shape[0], w.shape[0]), x.dtype), half(w.shape[0], x.shape[1] // group)
    return bench.intent("quant_linear", [x, w, scale], [out], bits=4, group=group, has_bias=False, has_zero=False)


def in_order(bench, x, kind):
    """The smallest first."""
    attrs = {"descending": False} if kind == "sort" else {"k": 4, "largest": False}
    return bench.intent(kind, [x], [bench.out((4,), x.dtype), bench.out((4,), torch.int64)], dim=0, **attrs)


def convolution(bench, x, w):
    shape = (x.shape[0], w.shape[0], *(n - k + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True)))
    out = bench.out(shape, x.dtype) if x.numel() < 1 << 24 else half(1, 1, 1, 1).expand(shape)
    return bench.intent("convolution", [x, w], [out], dilation=(1, 1), groups=1, has_bias=False, padding=(0, 0),
                        stride=(1, 1))  # fmt: skip


SUMMED = "x and w are int8 and summed in int32"
INDEXED = "indices are int32 or int64"
PUT = "what is put and where lies in other memory than the result"
MATRICES = "operands are fp16, bf16 or fp32, both of one format"
LYING = "each matrix lies densely along rows or columns"
EMPTY = "no dimension is empty"
APART = "rows lie no further apart than a copy can skip"
HEADS = "q, k, v and y are fp16, bf16 or fp32, all of one format"
NUMBERS = "operands and result are fp16, bf16 or fp32"

PLAIN = "nothing is done to the product but adding a bias"
SEEN = "scores are neither capped nor cut to a window"

BREAKING = {
    ("linear", PLAIN): lambda b: linear(b, half(2, 4), half(3, 4), activation="relu"),
    ("attention", SEEN): lambda b: attention(b, half(1, 2, 3, 4), half(1, 2, 3, 4), half(1, 2, 3, 4), softcap=30.0),
    ("linear", MATRICES): lambda b: linear(b, half(2, 4), torch.randn(3, 4)),
    ("linear", LYING): lambda b: linear(b, half(4, 8)[::2, ::2], half(3, 4)),
    ("linear", EMPTY): lambda b: linear(b, half(2, 0), half(3, 0)),
    ("linear", APART): lambda b: linear(b, far(3, 4), half(3, 4)),
    ("matmul", MATRICES): lambda b: matmul(b, half(2, 2, 4), torch.randn(2, 4, 3)),
    ("matmul", LYING): lambda b: matmul(b, half(2, 2, 4), half(2, 8, 6)[:, ::2, ::2]),
    ("matmul", EMPTY): lambda b: matmul(b, half(0, 2, 4), half(0, 4, 3)),
    ("matmul", APART): lambda b: matmul(b, half(1, 2, 3), far(1, 3, 4)),
    ("attention", HEADS): lambda b: attention(b, half(1, 2, 3, 4), half(1, 2, 3, 4), torch.randn(1, 2, 3, 4)),
    ("attention", "heads lie densely along the head dimension"):
        lambda b: attention(b, half(1, 2, 3, 8)[..., ::2], half(1, 2, 3, 4), half(1, 2, 3, 4)),
    ("attention", EMPTY): lambda b: attention(b, half(1, 2, 3, 4), half(1, 2, 0, 4), half(1, 2, 0, 4)),
    ("attention", APART): lambda b: attention(b, half(1, 1, 2, 4), far(1, 1, 3, 4), half(1, 1, 3, 4)),
    ("attention", "one row of scores, with its mask, fits UB"):
        lambda b: attention(b, half(1, 1, 1, 8), half(1, 1, 40_000, 8), half(1, 1, 40_000, 8)),
    ("attention", "one row of scores, with its mask, fits the scratch memory"):
        lambda b: attention(b, half(1, 1, 1, 8), half(1, 1, 200_000, 8), half(1, 1, 200_000, 8)),
    ("rms_norm", NUMBERS): lambda b: rms_norm(b, torch.int32),
    ("rms_norm", "the mean of squares is wanted in fp32 at most"): lambda b: rms_norm(b, compute=torch.float64),
    ("add_rms_norm", NUMBERS): lambda b: add_norm(b, "add_rms_norm", torch.int32),
    ("add_rms_norm", "the mean of squares is wanted in fp32 at most"):
        lambda b: add_norm(b, "add_rms_norm", torch.float16, torch.float64),
    ("add_layer_norm", NUMBERS): lambda b: add_norm(b, "add_layer_norm", torch.int32),
    ("group_norm", NUMBERS): lambda b: group_norm(b, half(2, 4).int()),
    ("group_norm", EMPTY): lambda b: group_norm(b, half(0, 4)),
    ("quantise", "x and scale are floats of 32 bits at most, y of 8 whole bits"): lambda b: b.intent(
        "quantise", [half(4), half(4)], [b.out((4,), torch.int16)], has_zero=False),
    ("layer_norm", NUMBERS): lambda b: b.intent(
        "layer_norm", [torch.ones(2, 4, dtype=torch.int64)], [b.out((2, 4), torch.int64)], axes=1, eps=0.0,
        has_weight=False, has_bias=False),
    ("gated_activation", NUMBERS): lambda b: b.intent(
        "gated_activation", [half(4).int(), half(4).int()], [b.out((4,), torch.int32)], act="relu"),
    ("rotary", NUMBERS): lambda b: rotary(b, 4, torch.int32),
    ("rotary", "the head dimension is even"): lambda b: rotary(b, 5),
    ("rotary", "every step is wanted in fp32 at most"): lambda b: rotary(b, 4, compute=torch.float64),
    ("softmax", NUMBERS): lambda b: b.intent(
        "softmax", [half(4).int()], [b.out((4,), torch.float32)], dim=0, log=False),
    **{(kind, INDEXED): lambda b, kind=kind: by_index(b, kind, torch.int16) for kind in BY_INDEX},
    **{(kind, PUT): lambda b, kind=kind: by_index(b, kind, torch.int64, same=True) for kind in BY_INDEX[2:]},
    ("histogram", "numbers are of 64 bits only where they are whole"): lambda b: counted(b, half(4).double()),
    ("histogram", "low and high are stated, apart, and no further from zero than 2^24"):
        lambda b: counted(b, half(4), high=0),
    ("histogram", "there are 1 to 256 parts"): lambda b: counted(b, half(4), bins=257),
    ("histogram", "1 to 2^24 numbers are counted"): lambda b: counted(b, half(0)),
    ("grouped_linear", "x, w and y are fp16, bf16 or fp32, all of one format"):
        lambda b: grouped(b, w=half(3, 4, 5).float()),
    ("grouped_linear", "ends are int32 or int64"): lambda b: grouped(b, ends=torch.zeros(3).char()),
    ("grouped_linear", EMPTY): lambda b: grouped(b, x=half(0, 5)),
    ("grouped_linear", "rows of x and y and each expert's matrix lie densely"):
        lambda b: grouped(b, x=half(2, 10)[:, ::2]),
    ("grouped_linear", APART): lambda b: grouped(b, w=far(1, 4, 5).expand(3, 4, 5)),
    ("grouped_linear", "all tiles have fewer than 2^24 rows, which float32 counts"):
        lambda b: grouped(b, x=half(1, 5).expand(1 << 24, 5), out=half(1, 4).expand(1 << 24, 4)),
    ("fused linear", "something is done to the product"): lambda b: linear(b, half(2, 4), half(3, 4)),
    ("fused linear", "all operands have y's format, and the activation is known"):
        lambda b: linear(b, half(2, 4), half(3, 4), activation="hardswish"),
    ("fused linear", MATRICES): lambda b: linear(b, half(2, 4).int(), half(3, 4).int(), activation="relu"),
    ("fused linear", LYING): lambda b: linear(b, half(4, 8)[::2, ::2], half(3, 4), activation="relu"),
    ("fused linear", EMPTY): lambda b: linear(b, half(2, 0), half(3, 0), activation="relu"),
    ("fused linear", APART): lambda b: linear(b, far(3, 4), half(3, 4), activation="relu"),
    ("whole linear", SUMMED): lambda b: linear(b, half(2, 4), half(3, 4)),
    ("whole linear", "the sums are all that is wanted"):
        lambda b: whole(b, bytes_(2, 4), bytes_(3, 4), activation="relu"),
    ("whole linear", EMPTY): lambda b: whole(b, bytes_(2, 0), bytes_(3, 0)),
    ("whole linear", LYING): lambda b: whole(b, bytes_(4, 8)[::2, ::2], bytes_(3, 4)),
    ("whole linear", APART): lambda b: whole(b, far_bytes(), bytes_(3, 4)),
    ("scaled_linear", SUMMED): lambda b: scaled(b, half(2, 4), bytes_(3, 4)),
    ("scaled_linear", "scales, bias and y are fp16, bf16 or fp32"):
        lambda b: scaled(b, bytes_(2, 4), bytes_(3, 4), rows=bytes_(2, 1)),
    ("scaled_linear", "there is a scale for each row of x and one for each column of w"):
        lambda b: scaled(b, bytes_(2, 4), bytes_(3, 4), rows=half(2, 3)),
    ("scaled_linear", EMPTY): lambda b: scaled(b, bytes_(2, 0), bytes_(3, 0)),
    ("scaled_linear", LYING): lambda b: scaled(b, bytes_(4, 8)[::2, ::2], bytes_(3, 4)),
    ("scaled_linear", APART): lambda b: scaled(b, far_bytes(), bytes_(3, 4), rows=half(3, 1)),
    ("quant_linear", "x, scale and bias are floats, w int8, or uint8 where it holds two numbers of 4 bits"):
        lambda b: quantised(b, half(2, 4), bytes_(3, 2)),
    ("quant_linear", "k is made of whole groups, of an even number where bytes hold two"):
        lambda b: quantised(b, half(2, 4), bytes_(3, 2).byte(), group=1),
    ("quant_linear", EMPTY): lambda b: quantised(b, half(0, 4), bytes_(3, 2).byte()),
    ("quant_linear", LYING): lambda b: quantised(b, half(4, 8)[::2, ::2], bytes_(3, 2).byte()),
    ("quant_linear", APART): lambda b: quantised(b, far(3, 4), bytes_(3, 2).byte()),
    ("sort", "scores are fp16, bf16 or fp32"): lambda b: in_order(b, half(4).int(), "sort"),
    ("digits", "numbers are int32 or int64"): lambda b: in_order(b, half(4), "sort"),
    ("digits", "a single row of more than 256 numbers is sorted"): lambda b: in_order(b, half(4).int(), "sort"),
    ("sort", "the largest come first"): lambda b: in_order(b, half(4), "sort"),
    ("top_k", "scores are fp16, bf16 or fp32"): lambda b: in_order(b, half(4).int(), "top_k"),
    ("top_k", "the largest come first"): lambda b: in_order(b, half(4), "top_k"),
    ("convolution", "x, w and bias are fp16, bf16 or fp32, x and w of one format"):
        lambda b: convolution(b, half(1, 2, 4, 4), half(2, 2, 3, 3).float()),
    ("convolution", EMPTY): lambda b: convolution(b, half(0, 2, 4, 4), half(2, 2, 3, 3)),
    ("convolution", "the columns of all windows have 4 GiB at most"):
        lambda b: convolution(b, half(1, 1, 1, 1).expand(64, 64, 4096, 4096), half(2, 64, 3, 3)),
    ("convolution", "results lie side by side, and so do numbers that are their own columns"):
        lambda b: convolution(b, half(1, 2, 4, 8)[..., ::2], half(2, 2, 1, 1)),
    ("convolution", APART): lambda b: convolution(b, half(1, 1, 1, 1).expand(1, 1, 3000, 3000), half(2, 1, 2, 2)),
    ("pool", NUMBERS): lambda b: b.intent(
        "pool", [half(1, 4).int()], [b.out((1, 2), torch.int32)], op="max", kernel=(2,), stride=(2,), padding=(0,)),
    ("pool", EMPTY): lambda b: b.intent(
        "pool", [half(0, 4)], [b.out((0, 2), torch.float16)], op="max", kernel=(2,), stride=(2,), padding=(0,)),
    ("embedding", "ids are int32 or int64"): lambda b: b.intent(
        "embedding", [torch.zeros(3, dtype=torch.int16), half(5, 4)], [b.out((3, 4), torch.float16)]),
}  # fmt: skip


ALONE = {"FlashAttentionScore", "MlaAttention", "PagedAttention", "generic.latent_attention", "generic.paged_attention"}
"""Kernels with limits of their own, which the tests of their library name."""


ROLES = {
    "FusedMatmul": "fused linear", "generic.fused_matmul": "fused linear",
    "Sort.digits": "digits",
    "MatmulInt8": "whole linear", "generic.int8_matmul": "whole linear",
}  # fmt: skip
"""Kernels of a kind that another kernel serves otherwise."""


VENDORS = ("sort", "digits", "top_k")
"""What generic serves without a limit."""


def role(kernel) -> str:
    return ROLES.get(kernel.name, kernel.kind)


def test_every_limit_refuses_in_its_own_words(bench):
    """acme-x1 states no gap that a copy could not skip, so there that limit holds for whatever comes."""
    for kernel in bench.kernels:
        for limit in kernel.limits if kernel.name not in ALONE else ():
            intent = BREAKING[role(kernel), limit.words](bench)
            if limit.words == APART and bench.chip.vendor == "acme":
                assert limit.holds(bench.chip, intent)
            else:
                assert kernel.refusal(bench.chip, intent) == limit.words


def test_every_library_states_the_same_limits(bench):
    """Each in its own memory's name, so that nothing slips past the vendor's kernel or past generic's."""
    fits = {"ascend": "one row of scores, with its mask, fits UB"}
    for library in {kernel.library for kernel in bench.kernels} - {"compiled"}:
        stated = {(role(k), limit.words) for k in bench.kernels if k.library == library and k.name not in ALONE
                  for limit in k.limits}  # fmt: skip
        other = "one row of scores, with its mask, fits the scratch memory"
        own = () if library == "ascend" else VENDORS
        assert stated == {key for key in BREAKING if "one row" not in key[1] and key[0] not in own} | {
            ("attention", fits.get(library, other))
        }


def test_what_breaks_a_limit_of_everybody_goes_to_the_host_with_all_their_words(bench):
    x, w = half(4, 8)[::2, ::2], half(4, 3)
    why = bench.refusal("matmul", [x, w], [bench.out((2, 3), x.dtype)])
    names = [kernel.name for kernel in bench.kernels if kernel.kind == "matmul"]
    assert why == "; ".join(f"{name}: not so: each matrix lies densely along rows or columns" for name in names)


def test_every_kernel_says_where_it_is_from_and_how_it_rounds(bench):
    for kernel in bench.kernels:
        assert kernel.source
        assert kernel.rounding.why
        assert all(limit.words for limit in kernel.limits)
