#!/bin/sh
# Checks a target of integration/fuzz under libFuzzer, and adds the inputs that reach new code to its corpus.
#
#   scripts/fuzz.sh TARGET [SECONDS [OPTION OF LIBFUZZER ...]]
#
# Without a target: every one. The programs are built in a folder of their own under target/, because each crate is
# instrumented. Inputs that break a property are kept in target/fuzz-findings.
set -eu
cd "$(dirname "$0")/.."

all=$(cd integration/fuzz/corpus && echo *)
targets=${1:-$all}
seconds=${2:-60}
if [ $# -gt 2 ]; then shift 2; else set --; fi

# The longest input that is added to a corpus, in bytes.
kept_bytes=256

builds=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | sed -n 's/^host: //p')
# The flags of cargo-fuzz without a sanitizer: none is needed where no crate of the workspace has unsafe code. With --target, they
# do not apply to build scripts and macros, which run during the build.
flags='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares'
RUSTFLAGS=$(echo $flags) cargo build --profile fuzz --target "$host" --target-dir "$builds/fuzz" \
    -p fuzz --features guided --bin guided
guided=$builds/fuzz/$host/fuzz/guided

for target in $targets; do
    corpus=integration/fuzz/corpus/$target
    # What this machine found before, however long.
    found=$builds/fuzz/corpus/$target
    findings=$builds/fuzz-findings/$target
    mkdir -p "$found" "$findings"
    echo "--- $target, $seconds s"
    # Memory beyond the limit and inputs that take too long are findings, too.
    FUZZ_TARGET=$target "$guided" "$found" "$corpus" -dict="integration/fuzz/dictionaries/$target" \
        -artifact_prefix="$findings/" -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=1024 \
        -print_final_stats=1 -verbosity=1 "$@"
    FUZZ_TARGET=$target "$guided" "$corpus" "$found" -set_cover_merge=1 -use_counters=0 -max_len="$kept_bytes" -timeout=20
done
