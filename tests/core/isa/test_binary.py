"""A program is one sequence of bytes and back, and any other bytes are answered with the place where they go wrong."""

from __future__ import annotations

import re
import struct
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.isa.drawn import program_of, programs, same

from dsf import errors
from dsf.isa import Affine, Instruction, Loop, Nest, Operand, Phase, Program
from dsf.isa.binary import MAGIC, decode, encode
from dsf.isa.program import MOST_LOOPS

quickly = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
HEAD = struct.Struct("<4sBQ")
COPY = Instruction("copy", (Operand("GM", (16, 64), (64, 1), "float16", Affine(4096), 0),), (("value", 0.5),))
SAMPLE = program_of(COPY)


def framed(payload: bytes) -> bytes:
    """*payload* with a frame that is right."""
    head = HEAD.pack(MAGIC, 1, len(payload)) + payload
    return head + struct.pack("<I", crc32(head))


def payload_of(program: Program) -> bytes:
    return encode(program)[HEAD.size : -4]


@quickly
@given(programs)
def test_every_program_comes_back_from_its_bytes(program: Program) -> None:
    assert same(decode(encode(program)), program)


def test_the_bytes_are_the_documented_ones() -> None:
    """Written out by hand, so that a file of today is read tomorrow."""
    program = Program("p", (), (Phase("c", (Nest((("i", 300),), (Instruction("nop", (), (("k", -2),)),)),)),))
    names = b"\x05" + b"\x01p" + b"\x01c" + b"\x01i" + b"\x03nop" + b"\x01k"
    body = b"\x00\x00" + b"\x01\x01\x01" + b"\x01\x02\xd8\x04" + b"\x01\x06\x00" + b"\x01\x04\x02\x03"
    assert encode(program) == framed(names + b"\x00" + body)


def test_a_nan_keeps_its_bits() -> None:
    (nan,) = struct.unpack("<d", bytes.fromhex("010000000000f87f"))
    program = decode(encode(program_of(Instruction("fill", (), (("value", nan),)))))
    values = [dict(ins.scalars)["value"] for ins, _ in program.instructions()]
    assert [struct.pack("<d", v).hex() for v in values] == ["010000000000f87f"] * 2


def test_what_recurs_is_written_once() -> None:
    """A known instruction on known windows: a byte for its name, two for the operands, three and a float's eight for
    the scalars."""
    again = Program(
        "sample", SAMPLE.params, (Phase("core", (Nest((("i", 2),), (*SAMPLE.phases[0].nests[0].body, COPY)),)),)
    )
    assert len(encode(again)) - len(encode(SAMPLE)) == 1 + 2 + 3 + 8


@pytest.mark.parametrize("value", [None, 1 << 63, "\ud800", b"text"])
def test_what_no_program_may_hold_has_no_bytes(value: object) -> None:
    with pytest.raises(errors.IsaError, match=r"^DSF-I020: .*; a listing cannot say that$"):
        encode(program_of(Instruction("fill", (), (("k", value),))))  # type: ignore[arg-type]


def nested(depth: int) -> Program:
    body: tuple[Instruction | Loop, ...] = (Instruction("nop"),)
    for _ in range(depth):
        body = (Loop("r", 1, body),)
    return Program("deep", (), (Phase("core", (Nest((), body),)),))


def test_more_loops_inside_each_other_than_may_be_are_refused_both_ways() -> None:
    assert decode(encode(nested(MOST_LOOPS))) == nested(MOST_LOOPS)
    with pytest.raises(errors.IsaError, match=r"^DSF-I020: more than 64 loops inside each other; a listing cannot "):
        encode(nested(MOST_LOOPS + 1))
    tables, program = b"\x01\x01p\x00", b"\x00\x00\x01\x00\x01\x00"
    loops = b"\x01\x01\x02" * 100_000  # a body of one item, the loop over name 0, its count 1
    with pytest.raises(
        errors.ListingError, match=r"^DSF-I022: byte 216: found loop 65 inside the others; expected 64 "
    ):
        decode(framed(tables + program + loops + b"\x00"))


BYTES = encode(SAMPLE)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "byte 0: found nothing; expected 93 44 53 46, with which a program begins"),
        (b"\x7fELF\x02\x01", "byte 0: found 7f 45 4c 46; expected 93 44 53 46, with which a program begins"),
        (BYTES[:9], "byte 9: found the end; expected 17 bytes at least"),
        (MAGIC + b"\x07" + BYTES[5:], "byte 4: found version 7; expected version 1, which this DSF reads"),
        (BYTES[:-1], f"byte 5: found a length of {len(BYTES) - 17}; expected {len(BYTES) - 18}, which are there"),
        (BYTES + b"\0", f"byte 5: found a length of {len(BYTES) - 17}; expected {len(BYTES) - 16}, which are there"),
        (framed(b""), "byte 13: found the end; expected a number"),
        (framed(b"\xff" * 9 + b"\x01"), "byte 13: found 18446744073709551615 names; expected at most 0, since so many "
         "bytes are left"),
        (framed(b"\xff" * 10), "byte 13: found a number of more than 64 bits; expected one of 64 at most"),
        (framed(b"\x01\x02\xc3\x28"), "byte 15: found c3; expected UTF-8"),
        (framed(b"\x01\x01p\x00\x05\x00\x00"), "byte 17: found name 5; expected one of 1 names, from 0 on"),
        (framed(b"\x01\x01p\x00\x00\x00\x00\x00"), "byte 20: found 1 bytes more; expected the end of the program"),
        (framed(b"\x01\x01p\x00\x00\x00\x01\x00\x01\x00\x01\x00\x00\x01\x00\x09"), "byte 28: found a scalar of kind 9; "
         "expected 0 to 5"),
        (framed(b"\x01\x01p\x00\x00\x00\x01\x00\x01\x00\x01\x00\x00\x01\x00\x03\x00"), "byte 29: found the end; "
         "expected a float of 8 bytes"),
        (framed(b"\x01\x01p\x00\x00\x00\x01\x00\x01\x00\x01\x00\x01\x00"), "byte 26: found operand 0; expected one of "
         "0 operands, from 0 on"),
        (framed(b"\x01\x01p\x01\x00\xf8\x07"), "byte 18: found 254 sizes; expected at most 0, since so many bytes are "
         "left"),
        (framed(b"\x02\x01p\x01q\x00\x00\x00\x00"), "byte 5: found what `encode` would write otherwise; "
         "expected its one form"),
        (framed(b"\x81\x00\x01p\x00\x00\x00\x00"), "byte 5: found what `encode` would write otherwise; "
         "expected its one form"),
    ],
)  # fmt: skip
def test_what_is_no_program_is_answered_with_the_byte_found_and_expected(data: bytes, sentence: str) -> None:
    with pytest.raises(errors.ListingError, match=f"^DSF-I022: {re.escape(sentence)}$"):
        decode(data)


def test_a_damaged_file_is_called_damaged() -> None:
    data = BYTES[:30] + bytes([BYTES[30] ^ 64]) + BYTES[31:]
    stated, computed = struct.unpack("<I", data[-4:])[0], crc32(data[:-4])
    with pytest.raises(
        errors.ListingError,
        match=f"^DSF-I022: byte {len(data) - 4}: found checksum {stated:08x}; expected {computed:08x}, that of the "
        "bytes before; the file is damaged$",
    ):
        decode(data)


@pytest.mark.parametrize("place", range(len(BYTES)))
def test_no_bit_that_flips_goes_unnoticed(place: int) -> None:
    for bit in range(8):
        data = BYTES[:place] + bytes([BYTES[place] ^ 1 << bit]) + BYTES[place + 1 :]
        with pytest.raises(errors.ListingError, match=r"^DSF-I022: byte \d+: found .*; expected "):
            decode(data)


def judged(data: bytes) -> None:
    """The program of just these bytes, or a sentence with one of their places; nothing else."""
    try:
        program, sentence = decode(data), ""
    except errors.ListingError as refusal:
        program, sentence = None, refusal.sentence
    if program is not None:
        assert encode(program) == data
        return
    match = re.match(r"byte (\d+): found .*; expected .*", sentence)
    assert match is not None
    assert 0 <= int(match[1]) <= len(data)


@quickly
@given(st.binary())
def test_any_bytes_are_a_program_or_a_sentence(data: bytes) -> None:
    for form in (data, MAGIC + data, framed(data), framed(payload_of(SAMPLE)[:24] + data)):
        judged(form)


@quickly
@given(programs, st.data())
def test_bytes_that_were_damaged_are_a_program_or_a_sentence(program: Program, data: st.DataObject) -> None:
    """Damaged in their frame, and inside a frame that is right again."""
    for inside in (False, True):
        damaged = payload_of(program) if inside else encode(program)
        for _ in range(data.draw(st.integers(1, 3))):
            start = data.draw(st.integers(0, len(damaged)))
            end = min(len(damaged), start + data.draw(st.integers(0, 4)))
            piece = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from((b"\xff" * 9, b"\x80" * 12))))
            damaged = damaged[:start] + piece + damaged[end:]
        judged(framed(damaged) if inside else damaged)
