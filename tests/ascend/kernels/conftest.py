"""The 910B2 with its vendor's kernels and generic's."""

from __future__ import annotations

import pytest


@pytest.fixture
def ascend(benches):
    return benches("ascend-910b2", "ascend")
