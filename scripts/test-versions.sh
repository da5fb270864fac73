#!/bin/sh
# test-versions.sh [<Debian suite>...]: runs a short part of the integration tests on every PostgreSQL, Redis and Valkey that these suites of Debian carry,
# each in a root that it makes with debootstrap under target/versions, and prints the result as the table of docs/operations.md.
# With UPDATE_DOCS=1 it also writes that table into the page.
#
# The tests are those of this build: a suite whose C library is older than this machine's cannot run them, and its row says so. Needs root.
set -eu

cd "$(dirname "$0")/.."
here=$PWD
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && realpath "${CARGO_TARGET_DIR:-target}")
export PATH="${PATH:-/usr/bin:/bin}:/usr/sbin:/sbin"
[ $# -gt 0 ] || set -- bookworm trixie sid

say() {
    echo "test-versions: $*" >&2
}

if [ "$(id -u)" != 0 ]; then
    say "debootstrap and chroot need root"
    exit 1
fi

# The ledger under kills, the relay, a failover of each server, leadership, the state store, HTTP, operators' changes.
tests='
    crash::killed_repeatedly_under_load_nothing_is_lost_and_nothing_exists_twice
    crash::killed_after_the_append_the_next_publisher_finds_the_marker_and_completes
    losses::completions_that_wait_while_redis_loses_their_entries_are_published_again
    losses::an_orderly_restart_in_the_middle_of_a_rename_of_a_stream_repeats_nothing
    election::a_killed_leader_is_followed_within_its_term_and_two_seconds
    replicas::two_replicas_under_load_lose_nothing_and_publish_nothing_twice
    republish::what_a_failover_lost_is_appended_again_once_by_one_of_two_replicas
    standby::
    read_replicas::
    relay::what_was_committed_becomes_a_notification_and_what_was_rolled_back_does_not
    relay_crash::killed_after_the_append_the_next_relay_finds_the_markers_and_adds_no_second_entry
    relay_loss::lost_events
    state::one_process_serves_the_same_documents_on_a_socket_and_on_tcp_and_logs_no_secret
    state_outage::while_postgresql_is_unavailable_a_response_comes_in_time_and_afterwards_all_is_well
    api_crash::killed_after_the_commit_before_the_answer_a_repeat_gets_the_stored_answer
    resend::
    grants::
    sentinel::
    cluster::
'

root_of() {
    echo "$target/versions/$1"
}

# In its own mount namespace: the root, with this folder and that of the build at their own paths.
enter() {
    root=$(root_of "$1")
    shift
    # shellcheck disable=SC2016 # the arguments belong to the inner shell
    unshare --mount sh -c '
        set -eu
        root=$1 here=$2 target=$3
        shift 3
        mount --rbind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs tmpfs "$root/tmp" && chmod 1777 "$root/tmp"
        for folder in "$here" "$target"; do
            mkdir -p "$root$folder"
            mount --bind "$folder" "$root$folder"
        done
        exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"
    ' enter "$root" "$here" "$target" "$@"
}

make_root() {
    root=$(root_of "$1")
    [ ! -e "$root" ] || return 0
    say "making a root of $1"
    mkdir -p "$target/versions"
    rm -rf "$root.unfinished"
    # If it is interrupted, its mounts end with the namespace.
    unshare --mount debootstrap --variant=minbase "$1" "$root.unfinished" >"$root.log" 2>&1
    echo '127.0.0.1 localhost' >"$root.unfinished/etc/hosts"
    mv "$root.unfinished" "$root"
}

# install <suite> <package>: returns 1 if the suite does not have it.
install() {
    enter "$1" apt-get install -qq --yes --no-install-recommends "$2" >>"$(root_of "$1").log" 2>&1
}

# The newest PostgreSQL of the root.
postgres_of() {
    enter "$1" sh -c 'ls /usr/lib/postgresql | sort -n | tail -1'
}

# run_tests <suite> <folder of redis-server>: prints "passed" or the number of failed tests.
run_tests() {
    log=$(root_of "$1")-$(basename "$2").tests.log
    # shellcheck disable=SC2086 # one argument for each test
    if enter "$1" env REDIS_BINDIR="$2" RUST_TEST_THREADS=6 "$binary" $tests >"$log" 2>&1; then
        sed -n 's/^test result: ok\. \([0-9]*\) passed.*/all \1 tests pass/p' "$log"
    elif grep -q 'GLIBC_' "$log"; then
        echo "not run: its C library is older than that of this build"
    else
        failed=$(sed -n 's/^test result: FAILED\. \([0-9]*\) passed; \([0-9]*\) failed.*/\2 of the tests fail/p' "$log")
        echo "${failed:-the tests did not end}"
        say "see $log"
    fi
}

cargo build --workspace --bins --tests
binary=$(cargo test --workspace --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"src_path":"[^"]*integration\/tests\/tests\/it\/main\.rs".*"executable":"\([^"]*\)".*/\1/p' | tail -1)
if [ -z "$binary" ]; then
    say "the integration tests could not be built"
    exit 1
fi

table=$target/versions/table.md
mkdir -p "$target/versions"
{
    echo '| Debian | PostgreSQL | Redis or Valkey | result |'
    echo '|---|---|---|---|'
} >"$table"
failed=no
for suite in "$@"; do
    make_root "$suite"
    # A mirror may be some days behind.
    enter "$suite" apt-get update -qq -o Acquire::Check-Valid-Until=false >>"$(root_of "$suite").log" 2>&1
    install "$suite" postgresql
    postgres=$(enter "$suite" "/usr/lib/postgresql/$(postgres_of "$suite")/bin/postgres" --version | awk '{ print $3 }')
    for server in redis valkey; do
        install "$suite" "$server-server" || continue
        # The tests start redis-server and redis-cli of one folder.
        folder=/opt/servers/$server
        enter "$suite" sh -c "mkdir -p $folder && for program in server sentinel cli; do ln -sf \"\$(command -v $server-\$program || command -v $server-server)\" $folder/redis-\$program; done"
        version=$(enter "$suite" $folder/redis-server --version | sed -n 's/.* v=\([^ ]*\).*/\1/p')
        say "$suite: PostgreSQL $postgres, $server $version"
        result=$(run_tests "$suite" "$folder")
        case $result in all*) ;; *) failed=yes ;; esac
        case $server in redis) name=Redis ;; *) name=Valkey ;; esac
        echo "| $suite | $postgres | $name $version | $result |" | tee -a "$table"
    done
done

if [ "${UPDATE_DOCS:-}" = 1 ]; then
    page=docs/operations.md
    awk -v table="$table" '
        /^<!-- versions: / { print; while ((getline line < table) > 0) print line; skip = 1; next }
        /^<!-- end of versions -->/ { skip = 0 }
        !skip
    ' "$page" >"$page.new"
    mv "$page.new" "$page"
fi
[ "$failed" = no ]
