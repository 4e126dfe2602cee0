"""Choices on disk: they come back as they were, whoever writes, whatever is found, whenever a process is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import struct
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from attrs import evolve

from dsf import errors
from dsf.isa.binary import decode, encode
from dsf.kernels import cache as module
from dsf.kernels import choose
from dsf.kernels.cache import DEFAULT_SIZE, MIB, Cache, Entry, opened, size_of, source_digest
from dsf.kernels.choose import Chooser
from dsf.kernels.target import Target


def kept(bench, folder: Path, most: int = MIB) -> Cache:
    return Cache(folder, most, "about", bench.chip, bench.isa)


@pytest.fixture
def entry(bench) -> Entry:
    x, w = torch.randn(32, 64).half(), torch.randn(48, 64).half()
    intent = bench.intent("linear", [x, w], [bench.out((32, 48), x.dtype)], has_bias=False, transposed=True)
    choice = Chooser.of(bench.target, bench.kernels)(intent)
    return Entry(choice.kernel.name, choice.variant, choice.why, choice.refused, choice.considered,
                 bench.timing(choice.program), choice.program)  # fmt: skip


def same(found: Entry | None, entry: Entry) -> bool:
    names = ("kernel", "variant", "why", "refused", "considered", "time", "program")
    return found is not None and all(getattr(found, name) == getattr(entry, name) for name in names)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_kept_comes_back_as_it_was(bench, entry, tmp_path):
    first = kept(bench, tmp_path)
    first.put(("a", 1), entry)
    again = kept(bench, tmp_path)
    assert same(again.get(("a", 1)), entry)
    assert again.get(("a", 2)) is None
    assert again.counts == {"hit": 1, "miss": 1}
    assert len(files(tmp_path)) == 1


def test_another_chip_source_or_tree_finds_nothing(bench, entry, tmp_path):
    kept(bench, tmp_path).put("a", entry)
    assert Cache(tmp_path, MIB, "another", bench.chip, bench.isa).get("a") is None


# what is found damaged


def framed(body: bytes) -> bytes:
    return body + blake2b(body, digest_size=16).digest()


def with_head(data: bytes, **changes) -> bytes:
    """The file *data* with another head, and a digest that is right."""
    length = struct.unpack_from("<I", data, 5)[0]
    head = json.dumps({**json.loads(data[9 : 9 + length]), **changes}).encode()
    return framed(data[:5] + struct.pack("<I", len(head)) + head + data[9 + length : -16])


def with_program(data: bytes, change) -> bytes:
    length = struct.unpack_from("<I", data, 5)[0]
    program = change(decode(data[9 + length : -16]))
    return framed(data[: 9 + length] + encode(program))


def reaching_out(program):
    """The same with parameters of one byte: every access reaches beyond them."""
    return evolve(program, params=tuple(evolve(param, nbytes=1) for param in program.params))


DAMAGE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "a byte less": lambda data: data[:-1],
    "a byte more": lambda data: data + b"\0",
    "a bit": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "noise": lambda data: os.urandom(len(data)),
    "a pickle": lambda data: b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "another version": lambda data: framed(data[:4] + b"\x02" + data[5:-16]),
    "a head beyond the end": lambda data: framed(data[:5] + struct.pack("<I", 1 << 31) + data[9:-16]),
    "a head that nests": lambda data: framed(data[:5] + struct.pack("<I", 90_000) + b"[" * 90_000 + data[9:-16]),
    "another entry's name": lambda data: with_head(data, name="0" * 32),
    "no kernel": lambda data: with_head(data, kernel=None, variant=7),
    "no time": lambda data: with_head(data, time={"phases": [[1]]}),
    "half a program": lambda data: framed(data[:-40]),
    "a program that reaches beyond its operands": lambda data: with_program(data, reaching_out),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_damaged_or_foreign_is_counted_and_removed(bench, entry, tmp_path, how):
    cache = kept(bench, tmp_path)
    cache.put("a", entry)
    (path,) = files(tmp_path)
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    assert cache.get("a") is None
    assert cache.counts == {"bad": 1}
    assert files(tmp_path) == []
    cache.put("a", entry)
    assert same(cache.get("a"), entry)


@pytest.mark.parametrize("what", ["folder", "pipe", "link"])
def test_what_is_no_file_is_not_read(bench, entry, tmp_path, what):
    cache = kept(bench, tmp_path / "cache")
    cache.put("a", entry)
    (path,) = files(tmp_path)
    data = path.read_bytes()
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    assert cache.get("a") is None


def test_a_process_killed_while_writing_leaves_nothing_that_is_read(bench, entry, tmp_path, monkeypatch):
    """The kill comes when half of the bytes are in the file."""
    cache = kept(bench, tmp_path)
    child = os.fork()
    if not child:  # pragma: no cover - it ends by a signal
        data = module._framed(cache._name("a"), entry)
        path = cache._path(cache._name("a"))
        path.parent.mkdir(parents=True)
        with path.with_name(f".{path.stem}.1.0").open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(files(tmp_path)) == 1
    assert cache.get("a") is None
    cache.put("a", entry)
    assert same(cache.get("a"), entry)


def test_what_was_never_finished_goes_when_room_is_made(bench, entry, tmp_path):
    cache = kept(bench, tmp_path, most=4000)
    left = tmp_path / "00" / ".left.1.0"
    left.parent.mkdir()
    left.write_bytes(b"x" * 3000)
    os.utime(left, (1, 1))
    fresh = tmp_path / "00" / ".fresh.1.0"
    fresh.write_bytes(b"x" * 100)
    for name in range(4):
        cache.put(name, entry)
    assert not left.exists()
    assert fresh.exists()


def _work(folder: str, bench, entry: Entry, seed: int) -> None:
    cache = Cache(Path(folder), 20_000, "about", bench.chip, bench.isa)
    for turn in range(60):
        name = (turn * (seed + 3)) % 13
        found = cache.get(name)
        assert found is None or same(found, evolve(entry, why=str(name)))
        cache.put(name, evolve(entry, why=str(name)))
    assert not cache.counts["bad"]


def test_many_processes_share_one_folder(bench, entry, tmp_path):
    """They read, write and evict the same names at once: what is read is always whole, and nobody fails."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_work, args=(str(tmp_path), bench, entry, seed)) for seed in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 6
    assert [path for path in files(tmp_path) if path.suffix != ".dsk"] == []


# room


def test_the_least_recently_used_go_first_and_the_size_holds(bench, entry, tmp_path):
    one = len(module._framed("0" * 32, entry))
    cache = kept(bench, tmp_path, most=one * 10 + 200)
    for name in range(10):
        cache.put(name, entry)
        os.utime(cache._path(cache._name(name)), (name + 1, name + 1))
    assert cache.get(0) is not None  # now it is the last one used
    cache.put(10, entry)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= cache.most
    assert cache.get(0) is not None
    assert cache.get(10) is not None
    assert cache.get(1) is None


def test_what_is_larger_than_all_room_is_not_kept(bench, entry, tmp_path):
    cache = kept(bench, tmp_path, most=100)
    cache.put("a", entry)
    assert files(tmp_path) == []


def test_where_nothing_can_be_written_that_is_said_once(bench, entry, tmp_path, caplog):
    (tmp_path / "taken").write_text("a file where a folder should be")
    cache = kept(bench, tmp_path / "taken")
    for name in "ab":
        cache.put(name, entry)
        assert cache.get(name) is None
    assert [record.message.split(":")[0] for record in caplog.records] == ["DSF-K034"]


# the user's word


@pytest.mark.parametrize(("text", "size"), [("", DEFAULT_SIZE), (" ", DEFAULT_SIZE), ("0", 0), ("3", 3), (" 7 ", 7)])
def test_a_size_is_whole_megabytes(text, size):
    assert size_of(text) == size * MIB


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "5MB", "\u0663", "9" * 10])
def test_another_size_is_a_sentence(text):
    with pytest.raises(errors.UsageError, match="expected whole megabytes, such as 512, or 0"):
        size_of(text)


def test_no_size_is_no_cache_and_the_folder_is_the_users(bench, monkeypatch, tmp_path):
    monkeypatch.setenv("DSF_KERNEL_CACHE_SIZE", "0")
    assert opened(bench.chip, bench.isa, ["dsf"], "") is None
    monkeypatch.setenv("DSF_KERNEL_CACHE_SIZE", "9")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = opened(bench.chip, bench.isa, ["dsf"], "")
    assert (cache.folder, cache.most) == (tmp_path / "dsf" / "kernels", 9 * MIB)


def test_other_source_is_another_state(tmp_path, monkeypatch):
    package = tmp_path / "some_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("A = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = source_digest.__wrapped__(("some_kernels",))
    assert source_digest.__wrapped__(("some_kernels",)) == before
    (package / "__init__.py").write_text("A = 2")
    assert source_digest.__wrapped__(("some_kernels",)) != before


# the chooser's use of it


def test_a_choice_from_the_disk_is_the_one_that_was_made(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "LONG", 0.0)
    x, w = torch.randn(32, 64).half(), torch.randn(48, 64).half()
    intent = bench.intent("linear", [x, w], [bench.out((32, 48), x.dtype)], has_bias=False, transposed=True)
    target = Target(bench.chip, bench.isa, bench.timing)
    made = Chooser.of(target, bench.kernels, cache=kept(bench, tmp_path))(intent)
    unable = [evolve(k, emit=None, variants=None) for k in bench.kernels]  # whoever asks one of them fails
    cache = kept(bench, tmp_path)
    found = Chooser.of(target, unable, cache=cache)(intent)
    assert cache.counts == {"hit": 1}
    assert (found.name, found.reason, found.program) == (made.name, made.reason, made.program)
    assert found.time == bench.timing(made.program)


def test_what_is_made_in_no_time_is_not_kept(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "LONG", 60.0)
    x = torch.randn(32, 64).half()
    intent = bench.intent("copy", [x], [bench.out((32, 64), x.dtype)])
    Chooser.of(bench.target, bench.kernels, cache=kept(bench, tmp_path))(intent)
    assert files(tmp_path) == []
