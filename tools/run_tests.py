#!/usr/bin/env python3
"""Runs every test this machine can run and prints one closing line, "N passed, N failed".

Usage: tools/run_tests.py BUILD_DIR   (C++ tests through CTest, pytest, the layers check)

Tests that need a GPU carry the label `gpu` and are left out here; they are not counted.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_ctest(build: pathlib.Path) -> tuple[int, int]:
    """Counts GoogleTest cases; a binary that ends badly without failed cases (a crash) counts as one failure."""
    reports = build / "gtest-reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    junit = build / "ctest.xml"
    junit.unlink(missing_ok=True)
    env = dict(os.environ, GTEST_OUTPUT=f"xml:{reports}/")
    subprocess.run(
        ["ctest", "--output-on-failure", "-LE", "gpu|perf", "--output-junit", str(junit)],
        cwd=build, env=env, check=False)
    if not junit.exists():
        print("run_tests: ctest left no report")
        return 0, 1
    passed = failed = 0
    failed_binaries = {case.get("name") for case in ElementTree.parse(junit).getroot().iter("testcase")
                       if case.get("status") != "run"}
    for report in sorted(reports.glob("*.xml")):
        suite = ElementTree.parse(report).getroot()
        total, bad = int(suite.get("tests")), int(suite.get("failures")) + int(suite.get("errors"))
        skipped = int(suite.get("skipped") or 0) + int(suite.get("disabled") or 0)
        passed += total - bad - skipped
        failed += bad + skipped  # nothing may be skipped
        if bad:
            failed_binaries.discard(report.stem)
    return passed, failed + len(failed_binaries)


def run_pytest(build: pathlib.Path) -> tuple[int, int]:
    junit = build / "pytest.xml"
    junit.unlink(missing_ok=True)
    env = dict(os.environ, MEDLEY_BINARY=str(build / "src/apps/medley"))
    subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/e2e", f"--junitxml={junit}"],
                   cwd=ROOT, env=env, check=False)
    if not junit.exists():
        return 0, 1
    suite = next(ElementTree.parse(junit).getroot().iter("testsuite"))
    total = int(suite.get("tests"))
    bad = sum(int(suite.get(kind)) for kind in ("failures", "errors", "skipped"))
    return total - bad, bad if total else 1


def run_layers() -> tuple[int, int]:
    ok = subprocess.run([sys.executable, "tools/check_layers.py"], cwd=ROOT, check=False).returncode == 0
    return int(ok), int(not ok)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    build = parser.parse_args().build.resolve()
    passed = failed = 0
    for name, (good, bad) in {"layers": run_layers(), "ctest": run_ctest(build),
                              "pytest": run_pytest(build)}.items():
        print(f"{name}: {good} passed, {bad} failed")
        passed, failed = passed + good, failed + bad
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
