"""The descriptions that ship: each loads, says where its numbers come from, and agrees with the documents it cites."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dsf import errors, hdl

FILES = sorted({entry.path for entry in hdl.catalogue() if entry.origin == "shipped"})


@pytest.fixture
def b2() -> hdl.Chip:
    return hdl.load("ascend-910b2")


@pytest.fixture
def acme() -> hdl.Chip:
    return hdl.load("acme-x1")


def quantities(node: Any, pointer: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if "origin" in node:
            yield pointer, node
        for key, child in node.items():
            yield from quantities(child, f"{pointer}/{key}")
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from quantities(child, f"{pointer}/{index}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: Path(path).stem)
def test_a_shipped_file_is_named_after_its_chip(path: str) -> None:
    assert hdl.load(path).name == Path(path).stem


@pytest.mark.parametrize("path", FILES, ids=lambda path: Path(path).stem)
def test_every_source_is_cited_by_some_number(path: str) -> None:
    document = json.loads(Path(path).read_text("utf-8"))
    cited = {q["source"] for _, q in quantities(document)} | {
        document[part]["source"] for part in ("kubernetes", "metrics") if part in document
    }
    assert cited == set(document["sources"])


def test_whatever_ascend_did_not_publish_says_how_it_was_chosen(b2: hdl.Chip) -> None:
    document = json.loads(Path(b2.path).read_text("utf-8"))
    weak = {"estimate", "fitted", "derived"}
    silent = [pointer for pointer, q in quantities(document) if q["origin"] in weak and "note" not in q]
    assert silent == []


def test_an_estimate_never_claims_a_vendor_as_its_source(b2: hdl.Chip) -> None:
    document = json.loads(Path(b2.path).read_text("utf-8"))
    assert {q["source"] for _, q in quantities(document) if q["origin"] == "estimate"} == {"dsf"}
    assert {q["origin"] for _, q in quantities(document) if q["source"] == "dsf"} == {"estimate"}


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("ascend-910b1", 363.7), ("ascend-910b2", 353.9), ("ascend-910b2c", 353.9), ("ascend-910b3", 294.9),
     ("ascend-910b4", 245.8), ("ascend-910b4-1", 245.8), ("ascend-910c", 353.9), ("ascend-910c-9362", 245.8),
     ("ascend-910c-9372", 294.9), ("ascend-910c-9392", 363.7)],
)  # fmt: skip
def test_the_peak_of_each_variant_is_what_msmodeling_lists(name: str, tflops: float) -> None:
    """2 x 4096 multiply-accumulates x 24 or 20 cores x 1.5 to 1.85 GHz."""
    chip = hdl.load(name)
    assert round(chip.peak_flops("float16") / 1e12, 1) == tflops
    assert chip.peak_origin("float16") == "datasheet"


def test_other_formats_peak_at_the_ratios_of_the_guide(b2: hdl.Chip) -> None:
    """The guide: int8 twice, int4 four times, hf32 half, float32 a quarter of float16."""
    assert b2.peak_flops("int8") == 707_788_800_000_000
    assert b2.peak_flops("float32") == 88_473_600_000_000
    assert b2.peak_flops("hf32") == 176_947_200_000_000
    assert b2.peak_flops("int4") == 1_415_577_600_000_000
    assert b2.peak_flops("bfloat16") == b2.peak_flops("float16")


def test_a_format_without_a_matrix_rate_has_no_peak(b2: hdl.Chip) -> None:
    with pytest.raises(errors.DtypeError) as error:
        b2.peak_flops("float8_e4m3fn")
    assert str(error.value) == (
        "DSF-N002: ascend-910b2: no matrix engine computes in float8_e4m3fn; the HDL states rates for "
        "bfloat16, float16, float32, hf32, int4, int8"
    )


def test_the_memories_of_a_910b2_have_the_sizes_of_the_ini(b2: hdl.Chip) -> None:
    assert {name: memory.nbytes // 1024 for name, memory in b2.memories.items()} == {
        "GM": 64 * 1024 * 1024, "L2": 192 * 1024, "L1": 512, "L0A": 64, "L0B": 64, "L0C": 128, "BT": 1, "FB": 7,
        "UB": 192,
    }  # fmt: skip
    owners = {name: memory.core for name, memory in b2.memories.items()}
    assert owners == {"GM": None, "L2": None, "UB": "AIV"} | dict.fromkeys(
        ("L1", "L0A", "L0B", "L0C", "BT", "FB"), "AIC"
    )
    assert {m.name: m.alignment for m in b2.memories.values() if m.scope == "core"} == {
        "L1": 32, "L0A": 512, "L0B": 512, "L0C": 64, "BT": 64, "FB": 64, "UB": 32,
    }  # fmt: skip


def test_what_can_be_used_of_the_main_memory_is_what_flagperf_measured(b2: hdl.Chip) -> None:
    assert b2.main_memory.name == "GM"
    assert round(b2.main_memory.usable / 2**30, 2) == 60.32
    assert b2.main_memory.bandwidth == 1_600_000_000_000
    assert b2.origin("/memories/GM/reserved").origin == "measured"


def test_the_paths_of_a_910b2_have_the_widths_of_ini_and_guide(b2: hdl.Chip) -> None:
    assert {f"{s}->{t}": (p.engine, p.bytes_per_cycle) for (s, t), p in b2.paths.items()} == {
        "GM->L1": ("MTE2", 110), "GM->UB": ("MTE2", 110), "UB->GM": ("MTE3", 64), "L1->GM": ("MTE3", 86),
        "L1->L0A": ("MTE1", 256), "L1->L0B": ("MTE1", 128), "L1->BT": ("MTE1", 32), "L1->FB": ("FIX", 32),
        "L0C->L1": ("FIX", 128), "L0C->GM": ("FIX", 86),
    }  # fmt: skip


def test_requests_banks_queues_and_start_ups_are_those_of_guide_and_pto_isa(b2: hdl.Chip) -> None:
    assert (b2.main_memory.burst, b2.main_memory.latency_fs) == (128, 500 * 10**6)
    assert (b2.memories["UB"].banks, b2.engines["MTE2"].queue_depth) == (48, 32)
    assert (b2.engines["V"].startup_cycles, b2.paths["GM", "UB"].startup_cycles) == (14, 85)


def test_no_path_leads_from_the_cube_core_to_the_vector_core(b2: hdl.Chip) -> None:
    """On this generation they exchange data through GM only."""
    for source, target in b2.paths:
        owners = {b2.memories[end].core for end in (source, target)} - {None}
        assert len(owners) == 1


def test_vector_rates_are_those_of_the_guide(b2: hdl.Chip) -> None:
    rates = b2.engines["V"].rates
    assert (rates["add"]["float16"], rates["add"]["float32"]) == (128, 64)
    assert rates["exp"]["default"] == 32
    assert (rates["reduce"]["float16"], rates["reduce"]["float32"]) == (Fraction(128, 7), Fraction(64, 7))
    assert (rates["muladd"]["float16"], rates["muladd"]["float32"]) == (64, 32)
    assert rates["gather"]["default"] == 5
    assert rates["cast"]["int64"] == 32


def test_one_fractal_takes_the_cube_one_cycle_in_float16(b2: hdl.Chip) -> None:
    """The guide's Mmad: 16 x 16 x 16 in float16; float32 is stored in fractals of 8, computed 4 at a time."""
    cube = b2.engines["M"]
    m, k, n = cube.tiles["float16"]
    assert m * k * n == cube.rates["mac"]["float16"] == 4096
    assert (cube.tiles["int8"], cube.tiles["int4"], cube.tiles["float32"]) == ((16, 32, 16), (16, 64, 16), (16, 8, 16))
    assert cube.rates["mac"]["float32"] == 16 * 16 * 4


def test_each_kind_of_core_has_its_engines(b2: hdl.Chip) -> None:
    assert [e.name for e in b2.per_core("AIC")] == ["S", "MTE1", "MTE2", "MTE3", "M", "FIX"]
    assert [e.name for e in b2.per_core("AIV")] == ["S", "MTE2", "MTE3", "V"]
    assert (b2.cores["AIC"].count, b2.cores["AIV"].count, b2.hertz("M")) == (24, 48, 1_800_000_000)


def test_no_bfloat16_on_the_vector_unit_and_no_8_bit_float_anywhere(b2: hdl.Chip) -> None:
    rules = b2.numerics.dtypes
    assert (rules["bfloat16"].matrix, rules["bfloat16"].vector) == ("native", "cast:float32")
    assert (rules["float8_e4m3fn"].matrix, rules["float8_e4m3fn"].vector) == ("error", "error")
    assert (rules["int64"].vector, rules["float64"].vector) == ("scalar", "host")
    assert (rules["int8"].accumulate, rules["float16"].accumulate) == ("int32", "float32")
    assert b2.numerics.rule("complex64").vector == "host"


def test_the_host_and_the_flags_are_those_of_the_documents(b2: hdl.Chip) -> None:
    assert (b2.host.launch_latency_fs, b2.host.issue_interval_fs) == (47 * 10**9, 5 * 10**9)
    assert (b2.sync.event_ids, b2.sync.reserved_event_ids) == (6, (6, 7))
    assert (b2.sync.cross_core_flag_ids, b2.sync.cross_core_counter_max) == (11, 15)
    assert b2.limits["vector_repeats"] == 255
    assert b2.limits["attention_tnd_head_dims"] == (64, 128, 192)


def test_the_thermal_network_settles_where_flagperf_measured_it(b2: hdl.Chip) -> None:
    """30 + 364.5 x (0.025 + 0.0724) = 65.5 °C; idle, 92.5 W, within the measured 37 to 51 °C; tau = 150 s."""
    thermal, power = b2.thermal, b2.power
    assert thermal is not None
    assert power is not None
    to_sink, to_air = thermal.edges["die", "sink"], thermal.edges["sink", "ambient"]
    assert thermal.ambient + power.states["full"] * (to_sink + to_air) == pytest.approx(65.5, abs=0.01)
    assert 37 <= thermal.ambient + power.states["idle"] * (to_sink + to_air) <= 51
    assert to_air * sum(thermal.nodes.values()) == pytest.approx(150, abs=0.1)
    assert [(step.celsius, step.frequency) for step in thermal.ladder] == [
        (95.0, Fraction(1, 2)),
        (100.0, Fraction(1, 4)),
    ]


def test_a_node_is_a_full_mesh_of_eight(b2: hdl.Chip) -> None:
    node, hccs = b2.interconnect.node, b2.interconnect.links["HCCS"]
    assert node == hdl.Node(8, "full_mesh", "HCCS")
    assert hccs.bandwidth * hccs.ports == 196_000_000_000
    assert hccs.efficiency == Fraction(7, 10)
    assert b2.interconnect.links["RoCE"].bandwidth == 25_000_000_000


def test_schedulers_and_exporters_find_their_names(b2: hdl.Chip) -> None:
    assert b2.kubernetes is not None
    assert (b2.kubernetes.resource, b2.kubernetes.memory_unit) == ("huawei.com/Ascend910B2", 1048576)
    assert b2.kubernetes.templates["vir06_1c_16g"] == hdl.Template(6, 16 * 2**30, 1)
    assert b2.visible_devices_variable == "ASCEND_RT_VISIBLE_DEVICES"
    assert b2.metrics.aliases["dsf_temperature_celsius"] == "npu_chip_info_temperature"


def test_measurements_are_the_published_points(b2: hdl.Chip) -> None:
    matmul = b2.measurements["matmul-float16"]
    assert (matmul.points["4096"], matmul.unit, matmul.origin.origin) == (314.52, "TFLOPS", "measured")


def test_a_variant_differs_in_what_it_sets_and_in_nothing_else(b2: hdl.Chip) -> None:
    b4 = hdl.load("ascend-910b4")
    assert (b4.main_memory.nbytes, b4.main_memory.bandwidth) == (32 * 2**30, 800_000_000_000)
    assert (b4.cores["AIC"].count, b4.clocks["core"], b4.title) == (20, 1_500_000_000, "Huawei Ascend 910B4")
    assert (b4.numerics, b4.paths, b4.sync) == (b2.numerics, b2.paths, b2.sync)
    assert b4.variants == {}
    assert set(b4.kubernetes.templates) == {"vir05_1c_8g", "vir10_3c_16g"} if b4.kubernetes else False
    assert (b2.main_memory.nbytes, set(b2.variants)) == (
        64 * 2**30,
        {
            "ascend-910b1",
            "ascend-910b2c",
            "ascend-910b3",
            "ascend-910b4",
            "ascend-910b4-1",
            "ascend-910c",
            "ascend-910c-9362",
            "ascend-910c-9372",
            "ascend-910c-9392",
        },
    )


def test_the_invented_chip_is_a_whole_chip_of_estimates(acme: hdl.Chip) -> None:
    assert acme.peak_flops("bfloat16") == 32_768_000_000_000  # 2 x 2048 x 8 cores x 1 GHz
    assert acme.peak_origin("bfloat16") == "estimate"
    assert acme.origin("/memories/sram/size") == hdl.Origin("estimate", "invented for tests and tutorials")
    assert (acme.vendor, acme.device, acme.numerics.preferred) == ("acme", "acme", "bfloat16")
    assert [e.name for e in acme.per_core("core")] == ["sca", "seq", "din", "dout", "mxu", "vec"]
    assert (acme.main_memory.usable, acme.memories["sram"].nbytes) == (16 * 2**30 - 256 * 2**20, 2**20)


@pytest.mark.parametrize(
    ("name", "cores", "megahertz", "gib", "l2", "terabytes"),
    [
        ("ascend-910b1", 24, 1850, 64, 192, 1.6), ("ascend-910b2", 24, 1800, 64, 192, 1.6),
        ("ascend-910b2c", 24, 1800, 64, 192, 1.6), ("ascend-910b3", 20, 1800, 64, 192, 1.6),
        ("ascend-910b4", 20, 1500, 32, 168, 0.8), ("ascend-910b4-1", 20, 1500, 64, 168, 1.6),
        ("ascend-910c", 24, 1800, 64, 192, 1.6), ("ascend-910c-9362", 20, 1500, 64, 168, 1.6),
        ("ascend-910c-9372", 20, 1800, 64, 192, 1.6), ("ascend-910c-9392", 24, 1850, 64, 192, 1.6),
    ],
)  # fmt: skip
def test_every_bin_is_that_of_its_ini(
    name: str, cores: int, megahertz: int, gib: int, l2: int, terabytes: float
) -> None:
    """L2 reads 110 B a cycle to each cube core, so its bandwidth follows."""
    chip = hdl.load(name)
    assert (chip.cores["AIC"].count, chip.cores["AIV"].count) == (cores, 2 * cores)
    assert chip.clocks["core"] == megahertz * 10**6
    assert (chip.main_memory.nbytes, chip.memories["L2"].nbytes) == (gib << 30, l2 << 20)
    assert chip.main_memory.bandwidth == terabytes * 10**12
    assert chip.memories["L2"].bandwidth == cores * 110 * megahertz * 10**6


@pytest.mark.parametrize("name", ["ascend-910c", "ascend-910c-9362", "ascend-910c-9372", "ascend-910c-9392"])
def test_a_die_of_the_910c_has_a_twin_and_fifteen_peers(name: str) -> None:
    """SIO 224 GB/s to the twin, UB 196 GB/s one way to the server, RoCE 24.5 GB/s. No HCCS."""
    chip = hdl.load(name)
    links = chip.interconnect.links
    assert {k: v.to for k, v in links.items()} == {"SIO": "chip", "UB": "chip", "RoCE": "network", "PCIe": "host"}
    assert links["SIO"].bandwidth == 224 * 10**9
    assert links["UB"].bandwidth * links["UB"].ports == 196 * 10**9
    assert chip.interconnect.node == hdl.Node(16, "switch", "UB")
    assert (chip.device, chip.vendor) == ("npu", "ascend")
