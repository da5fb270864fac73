#!/bin/sh
# Builds what is shipped into target/dist-artifacts: the .deb, the binary without its debug symbols and these beside it, the list of its
# components (CycloneDX), manual pages, completions and checksums of all. First it checks the dependencies by deny.toml. `make dist`
# installs the tools.
set -eu

# The largest binary that is shipped, in bytes: 20 MB.
MAX_BINARY_BYTES=20000000

cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=$target/dist-artifacts
# By their paths: cargo prefers a subcommand that the user has installed, in another version.
tools=$target/dist-tools/bin

say() {
    echo "dist: $*" >&2
}

# Either everything is there at the end, or nothing: also nothing of an earlier commit.
rm -rf "$out"
whole=no
clean_up() {
    # A list of components is written for each crate of the workspace, beside its manifest.
    find crates integration -name notification.cdx.json -delete
    [ "$whole" = yes ] || rm -rf "$out"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

say "checking the dependencies"
# The database of advisories is a repository on a server of its own, which may be out of reach. The other checks need no network.
"$tools/cargo-deny" --locked check licenses bans sources
if ! "$tools/cargo-deny" --locked fetch db; then
    if [ "${DIST_WITHOUT_ADVISORIES:-}" != yes ]; then
        say "the database of advisories is out of reach; DIST_WITHOUT_ADVISORIES=yes builds without that check, and says so in the artefacts"
        exit 1
    fi
    say "NOT CHECKED for advisories: their database is out of reach"
    advisories="not checked: the database of advisories was out of reach"
else
    "$tools/cargo-deny" --locked check advisories
    advisories="checked"
fi

# What is built is the commit, or a tree with changes. No repository: an archive of the source.
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
if [ -n "$(git status --porcelain 2>/dev/null)" ]; then commit="$commit with changes that are not committed"; fi

say "building"
cargo build --locked --profile dist -p app --bin notification

mkdir -p "$out"
built=$target/dist/notification
objcopy --only-keep-debug --compress-debug-sections=zlib "$built" "$out/notification.debug"
objcopy --strip-all --add-gnu-debuglink="$out/notification.debug" "$built" "$out/notification"
size=$(wc -c <"$out/notification")
if [ "$size" -gt "$MAX_BINARY_BYTES" ]; then
    say "the binary has $size bytes, and may have $MAX_BINARY_BYTES"
    exit 1
fi
say "the binary has $size bytes"

say "packaging"
sh scripts/package.sh "$built" "$out" >&2
cp -R target/package/man target/package/completions "$out"

say "listing the components"
"$tools/cargo-cyclonedx" cyclonedx --quiet --manifest-path crates/app/Cargo.toml --format json --spec-version 1.5 \
    --target "$(rustc -vV | sed -n 's/^host: //p')" --override-filename notification.cdx
# It names each crate by the folder of this machine.
sed "s|$PWD||g" crates/app/notification.cdx.json >"$out/notification.cdx.json"

printf 'advisories: %s\ncommit: %s\nrustc: %s\n' "$advisories" "$commit" "$(rustc --version)" >"$out/BUILD"
(cd "$out" && find . -type f ! -name SHA256SUMS | LC_ALL=C sort | sed 's|^\./||' | xargs sha256sum >SHA256SUMS)
whole=yes
say "done: $out"
ls -l "$out" >&2
