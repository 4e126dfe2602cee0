"""Who serves an intent, in which order everybody is asked, and what is said of those who do not."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from dsf import errors
from dsf.kernels.choose import Chooser
from dsf.kernels.kernel import EXACT, Kernel, Limit, Rounding

NEGATION = {"expr": ("neg", torch.float32, ("in", 0))}


@pytest.fixture
def negation(bench):
    x = torch.randn(4)
    return bench.intent("elementwise", [x], [bench.out((4,), x.dtype)], **NEGATION)


def offer(name, emit, *limits):
    return Kernel(name, "elementwise", name, emit, lambda intent, x: (-x,), limits)


def never(words):
    return Limit(words, lambda chip, intent: False)


def full(target, intent):
    raise errors.KernelError("DSF-K002", "the cupboard is full")


def test_of_equally_quick_ones_the_first_offer_is_taken(bench, negation):
    compiled = bench.kernel("compiled.elementwise")
    first = evolve(compiled, name="first")
    choice = Chooser.of(bench.target, [first, compiled])(negation)
    assert choice.kernel is first
    assert choice.reason == "quickest of 2 by predicted time"


def test_the_only_one_that_can_is_taken_untimed(bench, negation):
    choice = Chooser.of(bench.target, [bench.kernel("compiled.elementwise")])(negation)
    assert choice.reason == "nothing else takes it"


def test_the_quicker_one_is_taken_whoever_offers_first(bench, negation):
    compiled = bench.kernel("compiled.elementwise")

    def twice(target, intent):
        program = compiled.emit(target, intent)
        return evolve(program, name="twice", phases=program.phases * 2)

    choice = Chooser.of(bench.target, [offer("twice", twice), compiled])(negation)
    assert choice.kernel is compiled
    assert choice.considered == (("twice", ()), ("compiled.elementwise", ()))


def test_the_quickest_variant_is_taken(bench):
    """Of all tiles of a product, by the time of the very program that will run."""
    x, w = torch.randn(96, 256).half(), torch.randn(512, 256).half()
    intent = bench.intent("linear", [x, w], [bench.out((96, 512), x.dtype)], has_bias=False, transposed=True)
    chooser = Chooser.of(bench.target, bench.kernels)
    choice, all_of_them = chooser(intent), chooser.compare(intent)
    times = {c.preference: c.fs for c in all_of_them if c.fs is not None}
    assert len(times) > 5
    assert times[choice.kernel.name, choice.variant] == min(times.values()) < max(times.values())
    assert bench.timing(choice.program).duration_fs == min(times.values())
    assert choice.name == f"{choice.kernel.name} {choice.variant[0]}x{choice.variant[1]}"
    assert choice.reason.startswith(f"quickest of {len(times)} by predicted time")


def test_every_variant_computes_the_same_as_the_reference(bench):
    x, w = torch.randn(70, 100).half(), torch.randn(90, 100).half()
    inputs, kernel = [x, w], bench.kernel("MatMul" if bench.chip.vendor == "ascend" else "generic.matmul")
    intent = bench.intent("linear", inputs, [bench.out((70, 90), x.dtype)], has_bias=False, transposed=True)
    for variant in kernel.variants(bench.target, intent):
        one = evolve(kernel, emit=lambda target, intent, variant=variant: kernel.write(target, intent, variant))
        bench.run(
            "linear", inputs, [bench.out((70, 90), x.dtype)], kernel=one, has_bias=False, transposed=True
        ).agrees()


def test_who_was_asked_before_is_told_with_the_reasons(bench, negation):
    compiled = bench.kernel("compiled.elementwise")
    offers = [offer("proud", compiled.emit, never("the moon is full")), offer("stuffed", full), compiled]
    choice = Chooser.of(bench.target, offers)(negation)
    assert choice.kernel is compiled
    assert choice.reason == ("nothing else takes it; proud: not so: the moon is full; stuffed: the cupboard is full")


def test_what_nobody_serves_goes_to_the_host_with_everybodys_reason(bench, negation):
    offers = [offer("proud", full, never("the moon is full")), offer("stuffed", full)]
    choice = Chooser.of(bench.target, offers)(negation)
    assert (choice.kernel, choice.program) == (None, None)
    assert choice.reason == "proud: not so: the moon is full; stuffed: the cupboard is full"


def test_a_kind_that_nobody_offers_goes_to_the_host(bench, negation):
    assert Chooser.of(bench.target, [])(negation).reason == "no kernel of this kind is offered"


def test_a_fault_of_a_kernels_author_is_not_hidden_behind_the_host(bench, negation):
    def broken(target, intent):
        raise errors.MachineError("DSF-X005", "off by a byte")

    with pytest.raises(errors.MachineError, match="off by a byte"):
        Chooser.of(bench.target, [offer("broken", broken), bench.kernel("compiled.elementwise")])(negation)


def test_equal_intents_are_decided_once(bench, negation):
    asked = []
    compiled = bench.kernel("compiled.elementwise")

    def emit(target, intent):
        asked.append(intent)
        return compiled.emit(target, intent)

    choose = Chooser.of(bench.target, [offer("counting", emit)])
    assert choose(negation) is choose(evolve(negation, ops=(7,)))
    assert len(asked) == 1


def test_the_vendor_is_asked_first_then_generic_then_the_compiler(bench):
    order = list(dict.fromkeys(kernel.library for kernel in bench.kernels))
    assert order[-2:] == ["generic", "compiled"]
    assert len(order) == (2 if bench.chip.vendor == "acme" else 3)


def test_a_format_of_the_host_is_not_offered_to_anyone(bench):
    x = torch.randn(4, 4).double()
    why = bench.refusal("linear", [x, x], [bench.out((4, 4), x.dtype)], has_bias=False, transposed=True)
    assert why == "chip: the HDL computes float64 on the host"


def test_products_of_whole_numbers_are_computed_where_the_rule_for_products_says(bench):
    """int32 and uint8 are native on every vector engine, or cast there; no matrix engine has them."""
    for dtype in (torch.int32, torch.uint8):
        x = torch.ones(4, 4, dtype=dtype)
        why = bench.refusal("matmul", [x, x], [bench.out((4, 4), dtype)])
        assert why == f"chip: the HDL computes {str(dtype).removeprefix('torch.')} on the host"


def test_under_strict_a_product_of_int8_is_no_detour(bench):
    """The matrix engine has it; that a vector engine would cast it is another matter. No kernel offers it yet."""
    x = torch.ones(4, 4, dtype=torch.int8)
    intent = bench.intent("matmul", [x, x], [bench.out((4, 4), x.dtype)])
    choice = Chooser.of(bench.target, bench.kernels, strict=True)(intent)
    assert choice.refused[0][1].startswith("not so: operands are fp16")


def test_under_strict_a_detour_is_an_error_that_names_the_tensor(bench):
    x = torch.randn(4, 4).double()
    intent = bench.intent("linear", [x, x], [bench.out((4, 4), x.dtype)], has_bias=False, transposed=True)
    sentence = (
        r"outside any module: linear on a \[4, 4\] tensor of float64; "
        rf"{bench.chip.name} computes it by way of host, which strict forbids; convert the tensor on the host, "
        r"for example with \.cpu\(\)\.to\(torch\.float32\), or enable without strict"
    )
    with pytest.raises(errors.DtypeError, match=sentence):
        Chooser.of(bench.target, bench.kernels, strict=True)(intent)


# What a kernel states


def test_a_rounding_is_told_in_words():
    assert str(EXACT) == "bit-equal to its reference: nothing is computed in another order or precision"
    assert str(Rounding(1, 8, "sums in fp32")) == "within 1 ulp of its reference (8 in float32): sums in fp32"


def test_a_rounding_measures_in_the_last_place():
    """At 1.0 the next float16 is 2^-10 away; the mean of these magnitudes is below 2."""
    reference = torch.tensor([1.0, -1.5, 1.25]).half()
    off = reference.clone()
    off[1] += 2.0**-10
    assert Rounding(1, 0, "").excess(off, reference) is None
    off[1] += 2.0**-10
    assert Rounding(1, 0, "").excess(off, reference) == "2.0 ulp from the reference, 1 are stated"


def test_a_cancellation_counts_as_what_it_was_computed_from():
    reference = torch.tensor([1.0, 1.0, 2.0**-14]).half()
    off = reference.clone()
    off[2] = 0.0
    assert Rounding(1, 0, "").excess(off, reference) is None


def test_a_rounding_takes_nan_for_nan_and_nothing_else():
    reference = torch.tensor([torch.nan, torch.inf, 1.0])
    assert EXACT.excess(reference.clone(), reference) is None
    for place, number in ((0, 1.0), (1, 1.0), (2, torch.nan), (2, torch.inf)):
        off = reference.clone()
        off[place] = number
        assert Rounding(4, 4, "").excess(off, reference) is not None


def test_whole_numbers_have_no_rounding():
    assert Rounding(9, 9, "").excess(torch.tensor([3]), torch.tensor([4])) == "inf ulp from the reference, 0 are stated"
