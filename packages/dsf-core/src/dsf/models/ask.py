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

    from dsf.reports import Report

__all__ = ["Answer", "ask"]

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
    say: Callable[[str], None] = lambda text: None,
    watch: Watch = lambda stage, done, total: None,
) -> Answer:
    """Ask *model* one question on *chip*, greedily; *say* hears the answer as it comes, *watch* what is being done."""
    import dsf

    source = find(model)
    locate(source)  # a model that is not here is said before anything is enabled
    session = dsf.enable(chip, fidelity=fidelity, strict=strict)
    try:
        wall = _Laps()
        loaded = load(source, _dtype(dtype or session.chip.numerics.preferred), watch)
        wall.lap("load")
        move(loaded.model, session.chip.device, watch)
        wall.lap("upload")
        session.synchronize()
        upload_fs = session.now_fs()
        dsf.report(reset=True)
        heard = _generate(loaded, prompt, session, new_tokens, say)
        wall.lap("generate")
        return Answer(
            model=source.title,
            prompt=prompt,
            text=heard.text if session.fidelity != "timing" else None,
            prompt_tokens=heard.prompt_tokens,
            tokens=tuple(heard.tokens),
            upload_fs=upload_fs,
            arrivals_fs=tuple(heard.arrivals_fs),
            wall_seconds=wall.seconds,
            report=dsf.report(),
        )
    finally:
        dsf.disable()


def _dtype(name: str) -> torch.dtype:
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
class _Listener:
    """What transformers calls a streamer: `put` gets the prompt first, then each token when it is on the host."""

    tokenizer: Any
    clock: Callable[[], int]
    say: Callable[[str], None]
    start_fs: int = 0
    prompt_tokens: int = 0
    tokens: list[int] = field(factory=list)
    arrivals_fs: list[int] = field(factory=list)
    text: str = ""

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt_tokens:
            self.prompt_tokens = value.shape[-1]
            return
        self.tokens.append(int(value.reshape(-1)[0]))
        self.arrivals_fs.append(self.clock() - self.start_fs)
        self._say(self.tokenizer.decode(self.tokens, skip_special_tokens=True))

    def _say(self, text: str) -> None:
        """Say what is new; a character that is not whole yet waits for its other tokens."""
        if text.endswith("\ufffd"):
            return
        self.say(text[len(self.text) :])
        self.text = text

    def end(self) -> None:
        self.text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)


def _generate(loaded: Loaded, prompt: str, session: Any, new_tokens: int, say: Callable[[str], None]) -> _Listener:
    """Greedy generation with the model's chat template, on the session's device."""
    import torch

    listener = _Listener(loaded.tokenizer, session.now_fs, say, start_fs=session.now_fs())
    inputs = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(session.chip.device)
    with torch.no_grad():
        loaded.model.generate(**inputs, do_sample=False, max_new_tokens=new_tokens, streamer=listener)
    return listener
