#!/usr/bin/env python3
"""Fails on any #include that layers.txt does not allow, on wrapped headers outside their wrapper, and on overlong files.

Usage: tools/check_layers.py    (from anywhere in the checkout)
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
MAX_LINES = 500
# A file may exceed MAX_LINES only with its reason written here.
LONG_FILES: dict[str, str] = {}
# Third-party headers that only the named folders may include.
WRAPPED = {
    r"<boost/(?!regex)": {"server", "apps"},
    r"<boost/regex": {"adapter"},
    r"<cuda": {"cuda"},
    r"<flashinfer/|<cutlass/|<cute/": {"cuda"},
    r"<CLI/": {"apps"},
}


def read_layers() -> dict[str, set[str]]:
    layers: dict[str, set[str]] = {}
    for line in (ROOT / "layers.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        folder, _, allowed = line.partition(":")
        names = allowed.split()
        for name in names:
            if name != "*" and name not in layers:
                sys.exit(f"layers.txt: {folder} names '{name}', which is not listed above it")
        layers[folder] = set(names)
    return layers


def main() -> int:
    layers = read_layers()
    problems = []
    num_files = 0
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in SOURCE_SUFFIXES:
            continue
        num_files += 1
        rel = path.relative_to(ROOT / "src")
        folder = rel.parts[0]
        if folder not in layers:
            problems.append(f"src/{rel}: folder '{folder}' is not in layers.txt")
            continue
        lines = path.read_text().splitlines()
        if len(lines) > MAX_LINES and f"src/{rel}" not in LONG_FILES:
            problems.append(f"src/{rel}: {len(lines)} lines, more than {MAX_LINES}")
        for number, line in enumerate(lines, 1):
            quoted = re.match(r'\s*#\s*include\s+"([^"/]+)/', line)
            if quoted:
                target = quoted.group(1)
                if target in layers and target != folder and "*" not in layers[folder]:
                    if target not in layers[folder]:
                        problems.append(f"src/{rel}:{number}: forbidden include of '{target}' from '{folder}'")
            for pattern, owners in WRAPPED.items():
                if re.match(r"\s*#\s*include\s+" + f"(?:{pattern})", line) and folder not in owners:
                    problems.append(f"src/{rel}:{number}: forbidden include {line.strip()} outside {sorted(owners)}")
    for problem in problems:
        print(problem)
    print(f"check_layers: {num_files} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
