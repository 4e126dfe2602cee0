"""Attention for any chip: two products and a softmax between them, scores and weights in main memory."""

from __future__ import annotations

from functools import partial

from dsf.generic.isa import memories
from dsf.generic.kernels.matmul import emit_product
from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.kernels import latent, paged
from dsf.kernels.attention import LIMITS, ROUNDING, emit_attention, reference, row_fits
from dsf.kernels.kernel import Kernel, Limit

__all__ = ["KERNELS"]

NAME = "generic.attention"


def _row_fits(chip: Chip, intent: Intent) -> bool:
    return row_fits(memories(chip).scratch, chip, intent)


ROW = Limit("one row of scores, with its mask, fits the scratch memory", _row_fits)
LATENT_ROW = Limit("one row of both scores, with its mask, fits the scratch memory",
                   lambda chip, intent: latent.row_fits(chip, memories(chip).scratch, intent))  # fmt: skip
PAGED_ROW = Limit("one row of scores fits the scratch memory",
                  lambda chip, intent: paged.row_fits(chip, memories(chip).scratch, intent))  # fmt: skip
SOURCE = "derived from the HDL"
MLA, PAGES = "generic.latent_attention", "generic.paged_attention"

KERNELS = (
    Kernel(NAME, "attention", "generic", partial(emit_attention, emit_product, NAME), reference, (*LIMITS, ROW),
           ROUNDING, SOURCE),
    Kernel(MLA, "latent_attention", "generic", partial(latent.emit_latent, emit_product, MLA), latent.reference,
           (*latent.LIMITS, LATENT_ROW), latent.ROUNDING, SOURCE),
    Kernel(PAGES, "paged_attention", "generic", partial(paged.emit_paged, emit_product, PAGES), paged.reference,
           (*paged.LIMITS, PAGED_ROW), paged.ROUNDING, SOURCE),
)  # fmt: skip
