#!/bin/sh
# Breaks the code on purpose, one patch of integration/simulation/mutations after another, and requires that the simulation
# finds each within MUTATION_SEEDS seeds (10000 unless set). It works on a clone of the last commit under target/mutations.
# Arguments: the names of patches; none: all of them. Prints a table for docs/reliability.md.
set -eu

cd "$(dirname "$0")/.."
root=$PWD
seeds=${MUTATION_SEEDS:-10000}
tree=$root/target/mutations/tree
export CARGO_TARGET_DIR="$root/target/mutations/target" CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=none

rm -rf "$tree"
mkdir -p "$tree"
git clone -q "$root" "$tree"

if [ $# -eq 0 ]; then
    for patch in integration/simulation/mutations/*.patch; do set -- "$@" "$(basename "$patch" .patch)"; done
fi

missed=0
echo '| mutation | first seed that fails | it violates |'
echo '|---|---|---|'
for name in "$@"; do
    patch=$root/integration/simulation/mutations/$name.patch
    git -C "$tree" checkout -q -- .
    git -C "$tree" apply "$patch"
    (cd "$tree" && cargo build -q -p simulation)
    "$CARGO_TARGET_DIR/debug/simulation" --seeds "$seeds" --first >"$tree/found" || true
    if found=$(grep -m 1 '^seed [0-9]*: ' "$tree/found"); then
        seed=${found#seed }
        violated=$(echo "$found" | cut -d ' ' -f 3)
        echo "| $name | ${seed%%:*} | $violated |"
    else
        echo "| $name | none of $seeds | |"
        missed=1
    fi
done
exit $missed
