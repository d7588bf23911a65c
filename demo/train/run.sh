#!/usr/bin/env bash
# The whole recipe on one GPU: tokenizer, base, six adapters side by side, reference.
# Usage: run.sh DEMO_FOLDER [BASE_SECONDS] [ADAPTER_SECONDS]; PYTHON names the interpreter.
# With SAVE=FOLDER, each finished stage is also written there as a tar file.
set -eu
demo=$(realpath "$1") base_seconds=${2:-140} adapter_seconds=${3:-110}
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore
export OMP_NUM_THREADS=2

save() { if [ -n "${SAVE:-}" ]; then tar -C "$demo" -czf "$SAVE/$1.tar.gz" "$1"; fi; }

mkdir -p "$demo/model" "$demo/adapters"
"$python" "$here/tokens.py" "$demo/model"
"$python" "$here/train_base.py" --out "$demo/model" --seconds "$base_seconds"
save model
pids=()
for task in triage mood extract subject redact reply; do
  "$python" "$here/train_adapter.py" --task "$task" --model "$demo/model" --out "$demo/adapters" \
    --seconds "$adapter_seconds" & pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
save adapters
[ "$failed" = 0 ]
"$python" "$here/evaluate.py" --demo "$demo"
save reference
