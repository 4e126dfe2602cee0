"""Choices kept on disk, so that the next process need not search, write, verify, check and time again.

One file holds one choice: the kernel, the variant, the reasons, the predicted time and the program in its binary form.
Reading a long program takes a tenth of what making it took; one that is made in a few milliseconds is not kept. A file
is named by a digest of all that its contents depend on: the chip's description, the source of DSF and of the chip's
kernels, the trees, the intent. It is written beside its place, flushed and renamed, so that it is there whole or not at
all, whoever else writes and whenever a process is killed. What is found damaged or foreign is counted, removed and made
anew; nothing that a file says is believed before its own digest is right and the program in it obeys the chip's rules.
When all files together are too large, those go that were not used for longest.

    93 44 53 4b    the magic: 0x93, "DSK"
    01             the version
    length         of the head, 4 bytes
    head           JSON: the digest of the key, and all of the choice but the program
    program        see `dsf.isa.binary`
    digest         BLAKE2b of everything before it, 16 bytes
"""

from __future__ import annotations

import json
import logging
import os
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from platformdirs import user_cache_path

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Isa, Program
from dsf.isa.binary import decode, encode
from dsf.isa.verify import verify
from dsf.machine.timing import KernelTime, PhaseTime

__all__ = ["DEFAULT_SIZE", "Cache", "Entry", "opened", "size_of", "source_digest"]

MAGIC, VERSION = b"\x93DSK", 1
_HEAD = struct.Struct("<4sBI")
DIGEST = 16
SUFFIX = ".dsk"
MIB = 1 << 20
DEFAULT_SIZE = 512  # MiB
MOST_BYTES = 16 * MIB  # of one file
FULL_AGAIN = 0.9  # of the size is left after files had to go
FORSAKEN = 3600  # seconds after which a file that was never finished goes

log = logging.getLogger("dsf")


@frozen(eq=False)
class Entry:
    """A choice as it is kept: names and words, the predicted time, the program."""

    kernel: str
    variant: tuple[int | str, ...]
    why: str
    refused: tuple[tuple[str, str], ...]
    considered: tuple[tuple[str, tuple[int | str, ...]], ...]
    time: KernelTime
    program: Program


@define(eq=False)
class Cache:
    """The files of one folder, at most *most* bytes, for one chip and one state of DSF, which *about* names. *counts*
    has how many asked for were found (`hit`), were not (`miss`) or were no good (`bad`)."""

    folder: Path
    most: int
    about: str
    chip: Chip
    isa: Isa
    counts: Counter[str] = field(factory=Counter)
    _writable: bool = True
    _size: int | None = None
    _numbers: count[int] = field(factory=count)

    def get(self, key: object) -> Entry | None:
        """What is kept for *key*; None where nothing (good) is."""
        name = self._name(key)
        path = self._path(name)
        try:
            data = _bytes(path)
        except OSError:
            self.counts["miss"] += 1
            return None
        try:
            entry = self._entry(name, data)
        except (
            errors.DsfError,
            struct.error,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            RecursionError,
        ):
            self.counts["bad"] += 1
            with suppress(OSError):
                path.unlink()
            return None
        self.counts["hit"] += 1
        with suppress(OSError):
            os.utime(path)  # so that what is used stays
        return entry

    def put(self, key: object, entry: Entry) -> None:
        """Keep *entry* for *key*. Where the folder cannot be written, that is said once, and nothing is kept."""
        if not self._writable:
            return
        name = self._name(key)
        data = _framed(name, entry)
        if len(data) > min(self.most, MOST_BYTES):
            return
        try:
            self._write(self._path(name), data)
            self._make_room(len(data))
        except OSError as error:
            self._writable = False
            log.warning(
                "DSF-K034: kernels are not kept: %s cannot be written (%s); set DSF_KERNEL_CACHE_SIZE=0 to do without",
                self.folder, error.strerror or error,
            )  # fmt: skip

    def _name(self, key: object) -> str:
        return blake2b(f"{self.about} {key!r}".encode(), digest_size=DIGEST).hexdigest()

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}{SUFFIX}"

    def _entry(self, name: str, data: bytes) -> Entry:
        """The entry in *data*, if it is whole, for *name*, and its program obeys the chip's rules."""
        magic, version, length = _HEAD.unpack_from(data)
        body, digest = data[:-DIGEST], data[-DIGEST:]
        if (magic, version) != (MAGIC, VERSION) or blake2b(body, digest_size=DIGEST).digest() != digest:
            raise ValueError("damaged or foreign")
        head = json.loads(body[_HEAD.size : _HEAD.size + length])
        if head["name"] != name:
            raise ValueError("another entry's file")
        program = decode(body[_HEAD.size + length :])
        verify(program, self.isa, self.chip)
        return Entry(
            str(head["kernel"]), tuple(head["variant"]), str(head["why"]),
            tuple((str(who), str(why)) for who, why in head["refused"]),
            tuple((str(who), tuple(variant)) for who, variant in head["considered"]),
            _time(head["time"]), program,
        )  # fmt: skip

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.stem}.{os.getpid()}.{next(self._numbers)}")
        try:
            with beside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            with suppress(OSError):
                beside.unlink()

    def _make_room(self, more: int) -> None:
        """Count *more* bytes; where that is too much, files go until there is room, those first that were not used for
        longest, and what killed processes left unfinished."""
        if self._size is None:
            self._size = sum(size for _, size, _ in self._files())
        else:
            self._size += more
        if self._size <= self.most:
            return
        files = sorted(self._files())
        self._size = sum(size for _, size, _ in files)
        for used, size, path in files:
            unfinished = path.suffix != SUFFIX
            if self._size <= self.most * FULL_AGAIN and not (unfinished and used < time.time() - FORSAKEN):
                continue
            if unfinished and used >= time.time() - FORSAKEN:  # somebody is at it
                continue
            with suppress(OSError):
                path.unlink()
            self._size -= size

    def _files(self) -> Iterable[tuple[float, int, Path]]:
        """(last use, bytes, path) of every file of the folder, whoever wrote it."""
        for path in self.folder.glob("??/*"):
            with suppress(OSError):  # another process was quicker
                found = path.lstat()
                if stat.S_ISREG(found.st_mode):
                    yield found.st_mtime, found.st_size, path


def _bytes(path: Path) -> bytes:
    """The content of a regular file; an OSError for anything else, and for one that no cache would write."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no regular file")
        return file.read(MOST_BYTES + 1)


def _framed(name: str, entry: Entry) -> bytes:
    head = json.dumps({
        "name": name, "kernel": entry.kernel, "variant": entry.variant, "why": entry.why, "refused": entry.refused,
        "considered": entry.considered, "time": _plain(entry.time),
    }).encode()  # fmt: skip
    body = _HEAD.pack(MAGIC, VERSION, len(head)) + head + encode(entry.program)
    return body + blake2b(body, digest_size=DIGEST).digest()


def _plain(found: KernelTime) -> dict[str, Any]:
    phases = [[p.core, p.clock_hz, p.cycles, p.memory_fs, p.busy, p.team] for p in found.phases]
    return {"phases": phases, "barrier_fs": found.barrier_fs, "macs": found.macs, "nbytes": found.nbytes}


def _time(data: dict[str, Any]) -> KernelTime:
    phases = tuple(
        PhaseTime(str(core), int(clock), int(cycles), int(memory), _pairs(busy), _pairs(team))
        for core, clock, cycles, memory, busy, team in data["phases"]
    )
    return KernelTime(phases, int(data["barrier_fs"]), int(data["macs"]), int(data["nbytes"]))


def _pairs(data: Iterable[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(number)) for name, number in data)


def opened(chip: Chip, isa: Isa, packages: Iterable[str], about: str) -> Cache | None:
    """The cache for *chip*, whose kernels are from these top-level *packages*; None where the user wants none. *about*
    is what else choices depend on."""
    size = size_of(os.environ.get("DSF_KERNEL_CACHE_SIZE", ""))
    if not size:
        return None
    state = f"{chip.hash} {isa.name} {source_digest(tuple(sorted(set(packages))))} {about}"
    return Cache(user_cache_path("dsf") / "kernels", size, state, chip, isa)


def size_of(text: str) -> int:
    """Bytes that the user allows, from `DSF_KERNEL_CACHE_SIZE`: whole MiB, 0 for none, the usual size if it is empty. A
    UsageError (DSF-K035) for anything else."""
    if not text.strip():
        return DEFAULT_SIZE * MIB
    if not (text.strip().isascii() and text.strip().isdecimal() and len(text) < 10):
        raise errors.UsageError(
            "DSF-K035", f"DSF_KERNEL_CACHE_SIZE is '{text}'; expected whole megabytes, such as {DEFAULT_SIZE}, or 0 "
            "to keep no kernels"
        )  # fmt: skip
    return int(text) * MIB


@cache
def source_digest(packages: tuple[str, ...]) -> str:
    """A digest of all Python source of *packages*: with other generators, other programs."""
    digest = blake2b(digest_size=DIGEST)
    for name in packages:
        found = find_spec(name)
        for folder in sorted(found.submodule_search_locations or ()) if found else ():
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(str(path.relative_to(folder)).encode())
                with suppress(OSError):
                    digest.update(path.read_bytes())
    return digest.hexdigest()
