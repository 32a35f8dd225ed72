"""A stand-in for the NVIDIA driver's library, and the fixture `fake_nvml` (a pytest plugin: `-p tests.nvml`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nvml.fake import FakeGpu, FakeNvml, build, compiler

__all__ = ["FakeGpu", "FakeNvml", "build", "compiler", "fake_nvml", "nvml_library"]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library."""
    if compiler() is None:
        pytest.skip("no C compiler (cc): the stand-in for libnvidia-ml.so.1 cannot be built")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvml(tmp_path: Path, nvml_library: Path) -> FakeNvml:
    """A machine with one idle H200; `set_count` gives it more, `environment` goes into the daemon's."""
    return FakeNvml(tmp_path, nvml_library)
