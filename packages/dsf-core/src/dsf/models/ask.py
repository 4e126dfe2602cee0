"""One question, one answer, and what it cost on the emulated chip."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from dsf import errors
from dsf.models.load import Loaded, Watch, load, move
from dsf.models.shelf import find, locate

if TYPE_CHECKING:
    import torch

    from dsf.pipeline import Session
    from dsf.reports import Report

__all__ = ["Answer", "ask", "floating"]

FS_PER_SECOND = 10**15


@frozen
class Answer:
    """What *model* said to *prompt*, when its tokens came by the chip's own clock, and the report of the whole run.

    *text* is None when nothing was computed (fidelity `timing`). *upload_fs* is the emulated time of the weights' way
    to the device; the report counts from its end, and so does *arrivals_fs*.
    """

    model: str
    prompt: str
    text: str | None
    prompt_tokens: int
    tokens: tuple[int, ...]
    upload_fs: int
    arrivals_fs: tuple[int, ...]
    wall_seconds: dict[str, float]
    report: Report

    @property
    def upload_seconds(self) -> float:
        """Emulated time from the first weight's upload to the last's."""
        return self.upload_fs / FS_PER_SECOND

    @property
    def ttft_seconds(self) -> float:
        """Emulated time from the prompt's upload to the first token back on the host."""
        return self.arrivals_fs[0] / FS_PER_SECOND

    @property
    def tpot_seconds(self) -> float | None:
        """Emulated time per output token after the first; None for an answer of one token."""
        steps = len(self.arrivals_fs) - 1
        return (self.arrivals_fs[-1] - self.arrivals_fs[0]) / steps / FS_PER_SECOND if steps else None

    def to_json(self) -> dict[str, Any]:
        """The same as plain data, with the origin of each of its own numbers; the report has those of its own."""
        time = self.report.origins["emulated time"]
        return {
            "model": self.model,
            "prompt": self.prompt,
            "answer": self.text,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": len(self.tokens),
            "tokens": list(self.tokens),
            "upload_seconds": self.upload_seconds,
            "ttft_seconds": self.ttft_seconds,
            "tpot_seconds": self.tpot_seconds,
            "wall_seconds": dict(self.wall_seconds),
            "origins": {
                "upload_seconds": time,
                "ttft_seconds": time,
                "tpot_seconds": time,
                "wall_seconds": self.report.origins["host wall time"],
            },
            "report": self.report.to_json(),
        }


def ask(
    prompt: str,
    *,
    model: str,
    chip: str | None = None,
    fidelity: str | None = None,
    new_tokens: int = 64,
    dtype: str | None = None,
    strict: bool = False,
    thermal: str | None = None,
    ambient: float | None = None,
    strict_layouts: bool = False,
    say: Callable[[str], None] = lambda text: None,
    watch: Watch = lambda stage, done, total: None,
) -> Answer:
    """Ask *model* one question on *chip*, greedily; *say* hears the answer as it comes, *watch* what is being done."""
    import dsf

    source = find(model)
    locate(source)  # a model that is not here is said before anything is enabled
    session = dsf.enable(
        chip, fidelity=fidelity, strict=strict, thermal=thermal, ambient=ambient, strict_layouts=strict_layouts
    )
    try:
        wall = _Laps()
        loaded = load(source, floating(dtype or session.chip.numerics.preferred), watch)
        wall.lap("load")
        move(loaded.model, session.chip.device, watch)
        wall.lap("upload")
        session.synchronize()
        upload_fs = session.now_fs()
        dsf.report(reset=True)
        no_values = session.fidelity == "timing"
        heard = _generate(loaded, prompt, session, new_tokens, _reading(watch, _unsaid if no_values else say))
        wall.lap("generate")
        return Answer(
            model=source.title,
            prompt=prompt,
            text=None if no_values else heard.text,
            prompt_tokens=heard.prompt_tokens,
            tokens=tuple(heard.tokens),
            upload_fs=upload_fs,
            arrivals_fs=tuple(heard.arrivals_fs),
            wall_seconds=wall.seconds,
            report=dsf.report(),
        )
    finally:
        dsf.disable()


def _unsaid(text: str) -> None:
    """What is said without values means nothing."""


def floating(name: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, name, None)
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    raise errors.ModelError(
        "DSF-C005", f"--dtype: '{name}' is not a floating-point dtype of torch; write float32, float16 or bfloat16"
    )


@define
class _Laps:
    """Host wall time of the stages of one run."""

    seconds: dict[str, float] = field(factory=dict)
    since: float = field(factory=perf_counter)

    def lap(self, stage: str) -> None:
        now = perf_counter()
        self.seconds[stage], self.since = now - self.since, now


@define
class _Speech:
    """The tokens of an answer as they arrive on the host, by the chip's clock, and the text that they make."""

    tokenizer: Any
    say: Callable[[str], None]
    prompt_tokens: int
    tokens: list[int] = field(factory=list)
    arrivals_fs: list[int] = field(factory=list)
    text: str = ""

    def hear(self, token: int, now_fs: int) -> None:
        self.tokens.append(token)
        self.arrivals_fs.append(now_fs)
        whole = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        if not whole.endswith("\ufffd"):  # else a character that is not whole yet: its other tokens are to come
            self.say(whole[len(self.text) :])
            self.text = whole


def _reading(watch: Watch, say: Callable[[str], None]) -> Callable[[str], None]:
    """*say*, and *watch* told that the prompt is being read until the first word comes: with every instruction executed
    that takes seconds."""
    watch("the prompt", 0, 1)
    waiting = True

    def hear(text: str) -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            watch("the prompt", 1, 1)
        say(text)

    return hear


def _generate(loaded: Loaded, prompt: str, session: Session, new_tokens: int, say: Callable[[str], None]) -> _Speech:
    """Greedy, with the model's chat template: the prompt, then a token at a time, each read by the host.

    The loop is plain so that every fidelity takes the same steps; `timing`, whose values are all zero, never hears the
    model's end and goes on for *new_tokens*.
    """
    import torch

    start_fs, chat = session.now_fs(), [{"role": "user", "content": prompt}]
    ids = loaded.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).input_ids.to(session.chip.device)
    speech, cache = _Speech(loaded.tokenizer, say, ids.shape[-1]), None
    ends = set() if session.fidelity == "timing" else _ends(loaded.model)
    with torch.no_grad():
        while len(speech.tokens) < new_tokens:
            step = loaded.model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
            cache, ids = step.cache, step.logits[:, -1].argmax(-1, keepdim=True)
            token = int(ids.cpu()[0, 0])
            speech.hear(token, session.now_fs() - start_fs)
            if token in ends:
                break
    return speech


def _ends(model: Any) -> set[int]:
    """The tokens with which the model says that it is done."""
    ends = model.generation_config.eos_token_id
    return set(ends) if isinstance(ends, list) else {ends}
