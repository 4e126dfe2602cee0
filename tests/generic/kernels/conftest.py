"""Chips that are described and have no plugin."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsf import hdl


@pytest.fixture
def acme(benches):
    return benches("acme-x1", "generic")


@pytest.fixture
def variant(tmp_path: Path, benches) -> Callable[[dict[str, Any]], Any]:
    """A bench of acme-x1 with its description changed at JSON pointers; None drops what is there."""

    def variant(changes: dict[str, Any]) -> Any:
        document = copy.deepcopy(json.loads(Path(hdl.load("acme-x1").path).read_text("utf-8")))
        for pointer, value in {"/name": "acme-variant", **changes}.items():
            *parents, last = (key.replace("~1", "/") for key in pointer.split("/")[1:])
            node = document
            for key in parents:
                node = node[key]
            if value is None:
                del node[last]
            else:
                node[last] = value
        path = tmp_path / "acme-variant.json"
        path.write_text(json.dumps(document), "utf-8")
        return benches(str(path), "generic")

    return variant
