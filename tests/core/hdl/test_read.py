"""A malformed description is answered with all that is wrong with it; a hostile file with one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from dsf import errors, hdl

Complaint = Callable[[dict[str, Any]], list[str]]
Write = Callable[..., Path]


def quantity(value: object) -> dict[str, object]:
    return {"value": value, "origin": "estimate", "source": "acme"}


@pytest.mark.parametrize(
    ("pointer", "value", "finding"),
    [
        ("/clocks/core", quantity("fast"),
         "/clocks/core/value: 'fast' is not a frequency; write a number and a unit, like '1.2 GHz'"),
        ("/clocks/core", quantity("0 Hz"), "/clocks/core/value: found '0 Hz'; expected a frequency above zero"),
        ("/memories/hbm/bandwidth", quantity("0 B/s"),
         "/memories/hbm/bandwidth/value: found '0 B/s'; expected a bandwidth above zero"),
        ("/memories/hbm/bandwidth", quantity("1.6 TB"),
         "/memories/hbm/bandwidth/value: '1.6 TB': 'TB' is no unit of a bandwidth; a bandwidth has the units B/s, kB/s,"
         " MB/s, GB/s, TB/s, PB/s, KiB/s, MiB/s, GiB/s, TiB/s, PiB/s, b/s, kb/s, Mb/s, Gb/s, Tb/s, Pb/s"),
        ("/memories/sram/size", quantity(1048576),
         "/memories/sram/size/value: '1048576' has no unit; write a size as a number and a unit, like '64 KiB'"),
        ("/memories/sram/size", 1048576, "/memories/sram/size: found 1048576; expected an object"),
        ("/memories/sram/size/origin", "guess",
         "/memories/sram/size/origin: found 'guess'; expected one of measured, datasheet, derived, fitted, estimate"),
        ("/memories/sram/sise", "1 MiB",
         "/memories/sram/sise: is no field of HDL 1.0; known: alignment, bandwidth, banks, burst, cache, core, "
         "core_width, latency, main, mixed_bandwidth, note, reserved, scope, size; did you mean 'size'?"),
        ("/engines/mxu/rates/mac/value/bfloat16", "-3",
         "/engines/mxu/rates/mac/value/bfloat16: '-3 MAC/cycle' is negative; a rate is not"),
        ("/engines/mxu/rates/mac/value/bfloat16", 0,
         "/engines/mxu/rates/mac/value/bfloat16: found '0 MAC/cycle'; expected a rate above zero"),
        ("/engines/mxu/tiles/value/int8", [16, 32],
         "/engines/mxu/tiles/value/int8: found a list of 2; expected at least 3 items"),
        ("/engines/mxu/core", ["core", "core"], "/engines/mxu/core: found a list of 2; expected each item once"),
        ("/engines/mxu/kind", "magic",
         "/engines/mxu/kind: found 'magic'; expected one of matrix, vector, scalar, dma, sync"),
        ("/numerics/dtypes/fp7", {"matrix": "host", "vector": "host", "origin": "estimate", "source": "acme"},
         "/numerics/dtypes/fp7: found the name 'fp7'; expected one of float64, float32, hf32, tf32, float16, bfloat16, "
         "float8_e4m3fn, float8_e5m2, int64, int32, int16, int8, int4, uint8, bool"),
        ("/title", "two\nlines", "/title: found 'two?lines'; expected one line of text, 1 to 500 characters"),
        ("/title", "\ud800", "/title: found '?'; expected one line of text, 1 to 500 characters"),
        ("/name", "Acme X1",
         "/name: found 'Acme X1'; expected lower-case words joined by hyphens, like ascend-910b2"),
        ("/device", "cuda", "/device: found 'cuda'; torch keeps that name for itself; expected one like 'npu'"),
        ("/device", "npu0", "/device: found 'npu0'; expected a torch device name: lower-case letters and underscores"),
        ("/hdl", "2.0", "/hdl: found '2.0'; this DSF reads HDL '1.0'"),
        ("/clocks", {}, "/clocks: found an object with 0 fields; expected at least 1 fields"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_place_and_what_would_be_right(
    complaint: Complaint, pointer: str, value: object, finding: str
) -> None:
    assert finding in complaint({pointer: value})


@pytest.mark.parametrize(
    ("pointer", "value", "finding"),
    [
        ("/engines/vec/core", ["cor"],
         "/engines/vec/core: there is no core named 'cor'; known: core; did you mean 'core'?"),
        ("/engines/vec/clock", "cpu", "/engines/vec/clock: there is no clock named 'cpu'; known: core"),
        ("/memories/sram/core", "cube", "/memories/sram/core: there is no core named 'cube'; known: core"),
        ("/memories/sram/scope", "chip",
         "/memories/sram/core: a memory of scope 'chip' belongs to no kind of core; drop it"),
        ("/memories/hbm/main", False,
         '/memories: found none; expected exactly one memory with "main": true, where tensors live'),
        ("/memories/acc/main", True,
         '/memories: found hbm, acc; expected exactly one memory with "main": true, where tensors live'),
        ("/memories/hbm/reserved", quantity("16 GiB"), "/memories/hbm/reserved: reserves 16 GiB of 16 GiB"),
        ("/paths/acc->sram/engine", "dma",
         "/paths/acc->sram/engine: there is no engine named 'dma'; known: din, dout, mxu, sca, seq, vec"),
        ("/paths/acc->l2", {"engine": "dout", "width": quantity("4 B/cycle")},
         "/paths/acc->l2: there is no memory named 'l2'; known: acc, hbm, sram"),
        ("/engines/mxu/tiles/value", {"bfloat16": [16, 16, 16], "float16": [16, 16, 16], "int8": [16, 32, 16]},
         "/engines/mxu/tiles: has no tile for float32, which has a rate; write its [m, k, n]"),
        ("/engines/vec/rates", {"exp": {"value": {"default": 1}, "unit": "element/cycle", **quantity(0)}},
         "/engines/vec/rates/default: is missing; a vector engine needs a rate for any other class"),
        ("/engines/mxu/rates", {"add": {**quantity(0), "value": {"default": 1}, "unit": "MAC/cycle"}},
         "/engines/mxu/rates/mac: is missing; a matrix engine needs multiply-accumulates per cycle"),
        ("/numerics/preferred", "int64",
         "/numerics/preferred: found 'int64'; expected a dtype whose matrix rule is 'native'"),
        ("/numerics/dtypes/int64/matrix", "native",
         "/numerics/dtypes/int64/matrix: 'native', but no matrix engine has a rate for int64"),
        ("/numerics/dtypes/int64/vector", "cast:int32", None),
        ("/numerics/dtypes/float64/matrix", "cast:int32",
         "/numerics/dtypes/float64/matrix: casts to int32, whose matrix rule is not 'native'"),
        ("/clocks/core/source", "acm",
         "/clocks/core/source: there is no source named 'acm'; known: acme; did you mean 'acme'?"),
        ("/interconnect/node/link", "bus", "/interconnect/node/link: there is no link named 'bus'; known: ring"),
        ("/thermal/heated", "sink", "/thermal/heated: there is no thermal node named 'sink'; known: die"),
        ("/thermal/edges/die->lid", quantity("1 K/W"),
         "/thermal/edges/die->lid: there is no thermal node named 'lid'; known: ambient, die"),
        ("/power/engines/mxy", quantity("1 nJ/cycle"),
         "/power/engines/mxy: there is no engine named 'mxy'; known: din, dout, mxu, sca, seq, vec; did you mean "
         "'mxu'?"),
        ("/thermal/control/period", quantity("1 us"),
         "/thermal/control/period: found 1 us; expected at least 1 ms, faster than any sensor"),
        ("/variants", {"acme-x2": {"title": "X2", "set": {"/clocks/cores": quantity("2 GHz")}}},
         "/variants/acme-x2/set/~1clocks~1cores: sets /clocks/cores, a field that this file does not have"),
        ("/variants", {"x2": {"title": "X2", "set": {}}, "x3": {"title": "X3", "like": "x4", "set": {}}},
         "/variants/x3/like: there is no variant that is like no other named 'x4'; known: x2"),
        ("/variants", {"x2": {"title": "X2", "like": "x2", "set": {}}, "x3": {"title": "X3", "set": {}}},
         "/variants/x2/like: there is no variant that is like no other named 'x2'; known: x3"),
    ],
)  # fmt: skip
def test_a_name_that_names_nothing_is_found(
    complaint: Complaint, write: Write, pointer: str, value: object, finding: str | None
) -> None:
    if finding is None:
        assert hdl.load(write({pointer: value})).numerics.dtypes["int64"].vector == "cast:int32"
    else:
        assert finding in complaint({pointer: value})


def test_a_path_must_be_moved_by_an_engine_of_the_core_that_owns_its_ends(complaint: Complaint) -> None:
    other = {"count": quantity(1), "clock": "core"}
    assert complaint({"/cores/other": other, "/engines/dout/core": ["other"]}) == [
        "/paths/sram->hbm/engine: engine dout is in other; sram belongs to core",
        "/paths/acc->hbm/engine: engine dout is in other; acc belongs to core",
        "/paths/acc->sram/engine: engine dout is in other; acc belongs to core",
        "/paths/acc->sram/engine: engine dout is in other; sram belongs to core",
    ]


def test_all_problems_of_a_file_are_listed_at_once(write: Write) -> None:
    path = write({
        "/clocks/core/value": "fast",
        "/memories/sram/core": "cube",
        "/host": {},
        "/colour": "red",
        "/device": 7,
    })  # fmt: skip
    with pytest.raises(errors.HdlError) as error:
        hdl.load(path)
    first, *rest = error.value.sentence.split("\n")
    assert first == f"{path}: 10 problems"
    assert {line.split(":")[0].strip() for line in rest} == {
        "/clocks/core/value", "/memories/sram/core", "/colour", "/device", "/host/launch_latency",
        "/host/issue_interval", "/host/copy_bandwidth", "/host/copy_latency", "/host/op_latency", "/host/op_bandwidth",
    }  # fmt: skip


def test_a_single_problem_is_one_line(write: Write) -> None:
    path = write({"/clocks/core/value": "fast"})
    sentence = "/clocks/core/value: 'fast' is not a frequency; write a number and a unit, like '1.2 GHz'"
    with pytest.raises(errors.HdlError) as error:
        hdl.load(path)
    assert str(error.value) == f"DSF-H003: {path}: {sentence}"


def test_a_thousand_problems_are_counted_and_the_first_two_hundred_listed(write: Write) -> None:
    path = write({f"/extra{n}": 1 for n in range(1000)})
    with pytest.raises(errors.HdlError) as error:
        hdl.load(path)
    first, *rest = error.value.sentence.split("\n")
    assert first == f"{path}: 1000 problems"
    assert (len(rest), rest[-1]) == (201, "  and 800 more")


def test_a_key_written_twice_is_named(tmp_path: Path, write: Write) -> None:
    text = write({}).read_text("utf-8")
    path = tmp_path / "twice.json"
    path.write_text(text.replace('"alignment":', '"scope": "chip", "alignment":', 1), "utf-8")
    with pytest.raises(errors.HdlError, match=r"twice.json: /memories/hbm/scope: is written twice; keep one$"):
        hdl.load(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no JSON at line 1, column 1: Expecting value"),
        (b"{\n  'a': 1}", "no JSON at line 2, column 3: Expecting property name enclosed in double quotes"),
        (b"[1, 2]", "holds a list of 2; expected a JSON object that describes a chip"),
        (b"NaN", "holds 'NaN'; expected a JSON object that describes a chip"),
        (b'{"a": "\xff"}', "is not UTF-8: byte 7 is 0xff"),
        (b"[" * 200_000, "nested too deeply; a hardware description has at most 8 levels"),
        (b'{"a":' * 200_000, "nested too deeply; a hardware description has at most 8 levels"),
        (b" " * (4 * 2**20 + 1), "has 4 MiB; expected at most 4 MiB"),
        (b'{"a": ' + b"9" * 5000 + b"}", "holds a number that cannot be read: Exceeds the limit"),
    ],
)
def test_a_file_that_is_no_description_gets_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "hostile.json"
    path.write_bytes(content)
    with pytest.raises(errors.HdlError) as error:
        hdl.load(path)
    assert str(error.value).startswith(f"DSF-H002: {path}: {sentence}")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_found_at_its_place(tmp_path: Path, write: Write, number: str) -> None:
    path = tmp_path / "nan.json"
    path.write_text(write({"/cores/core/count/value": 77}).read_text("utf-8").replace("77", number), "utf-8")
    with pytest.raises(errors.HdlError, match=f"nan.json: /cores/core/count/value: '{number}'"):
        hdl.load(path)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf" + write({}).read_bytes())
    assert hdl.load(path).name == "acme-x1"


def test_what_is_no_file_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    os.mkfifo(tmp_path / "pipe.json")
    for name, sentence in {
        "absent": "does not exist; expected a JSON file",
        "dangling": "is a link to nothing; expected a JSON file",
        "folder": "is a folder; expected a JSON file",
        "pipe": "is no regular file; expected a JSON file",
        "loop": "cannot be read: Too many levels of symbolic links",
    }.items():
        with pytest.raises(errors.HdlError) as error:
            hdl.load(tmp_path / f"{name}.json")
        assert str(error.value) == f"DSF-H002: {tmp_path / name}.json: {sentence}"
    with pytest.raises(errors.HdlError, match=r"'/a\\x00b.json' is no file name; expected the path of a JSON file$"):
        hdl.load("/a\0b.json")


def test_any_part_of_any_type_is_answered_and_never_crashes(write: Write) -> None:
    """Every node of the document in turn is replaced by the next of these values; few of the results are valid."""
    values = cycle([None, 3, "x", [], {}, True, [[]], {"value": {}}])
    refused = 0
    for pointer, value in zip(list(pointers(json.loads(write({}).read_text("utf-8")), "")), values, strict=False):
        try:
            hdl.load(write({pointer: value}))
        except errors.HdlError:
            refused += 1
    assert refused > 100


def pointers(node: Any, parent: str, depth: int = 3) -> Any:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children if depth else ():
        yield f"{parent}/{key}"
        yield from pointers(child, f"{parent}/{key}", depth - 1)
