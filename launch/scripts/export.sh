#!/usr/bin/env bash
# export.sh [STEP]: write the checkpoint after STEP steps (by default the newest) in Hugging Face's form to
# weights/NAME-step-STEP, on one node with slime. It needs no GPU, and main memory for the whole model.
# What slime does not train, such as the part for images, is taken from the checkpoint of model.path.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"

checkpoints=$JOB_DIR/checkpoints
none_yet="$checkpoints has no checkpoint yet: one is written every trainer.save_every steps"
if (($#)); then
  [[ $1 =~ ^[1-9][0-9]*$ ]] || die 2 "STEP is $1: give the number of steps after which the checkpoint was written"
  iteration=$(($1 - 1)) # Megatron counts from 0.
else
  iteration=none
  [[ ! -r $checkpoints/latest_checkpointed_iteration.txt ]] || iteration=$(<"$checkpoints/latest_checkpointed_iteration.txt")
  [[ $iteration =~ ^[0-9]+$ ]] || die 2 "$none_yet"
  iteration=$((10#$iteration))
fi
printf -v source '%s/iter_%07d' "$checkpoints" "$iteration"
printf -v target '%s/weights/%s-step-%06d' "$JOB_DIR" "$NAME" "$((iteration + 1))"
if [[ ! -d $source ]]; then
  shopt -s nullglob
  known=()
  for each in "$checkpoints"/iter_*; do known+=($((10#${each##*_} + 1))); done
  ((${#known[@]})) || die 2 "$none_yet"
  die 2 "$checkpoints has no checkpoint after step $((iteration + 1)): there is one after each of the steps ${known[*]}"
fi
if [[ -e $target ]]; then
  say "$target is there already"
else
  mkdir -p "$JOB_DIR/weights"
  rm -rf -- "$target.partial"
  export_environment 127.0.0.1
  say "writing $source to $target"
  "$PYTHON" -u "$SLIME_DIR/tools/convert_torch_dist_to_hf.py" --input-dir "$source" --output-dir "$target.partial" \
    --origin-hf-dir "$HF_CHECKPOINT" --add-missing-from-origin-hf --vocab-size "$VOCABULARY" >&2
  mv -T -- "$target.partial" "$target"
fi
printf '%s\n' "$target"
