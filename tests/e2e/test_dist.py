"""The folder that `make dist` makes runs by itself."""
import pathlib
import subprocess

import pytest

from conftest import BINARY, MODEL, ROOT

SYSTEM_LIBRARIES = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux", "linux-vdso")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    target = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "tools/dist", BINARY, target], check=True, capture_output=True)
    (made,) = target.iterdir()
    return made


def test_needs_nothing_but_the_c_library(folder):
    lines = subprocess.run(["ldd", folder / "bin/medley"], check=True, capture_output=True, text=True).stdout.splitlines()
    for line in lines:
        name = line.split()[0].split("/")[-1]
        assert name.startswith(SYSTEM_LIBRARIES) or str(folder) in line or "bin/../lib" in line, line


def test_serves_the_demo_model_with_an_empty_environment(folder):
    command = [folder / "bin/medley", "bench", "offline", MODEL, "--device", "cpu", "--input-len", "8", "--output-len", "4", "--concurrency", "1"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stdout + done.stderr


def test_carries_licence_and_notices(folder):
    for name in ("LICENSE", "THIRD_PARTY_NOTICES.md"):
        assert (folder / name).read_text() == (ROOT / name).read_text()
