# Sourced by the scripts beside it: `ensure_venv run|dev` leaves .venv with exactly that lock installed, or says why not.
#
# A stamp in .venv names what is installed, so that a second call costs nothing. A mark stands while an installation
# is under way: whoever finds it with nobody at work starts .venv anew, for a half-written package looks installed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
mark=$venv/headrace-installing
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf 'headrace: %s\n' "$*" >&2; }

# The first Python that runs, is 3.11 or newer and can make an environment. $PYTHON decides where it is set.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
        [ -z "${PYTHON:-}" ] || break
    done
    if [ -n "${PYTHON:-}" ]; then
        say "PYTHON=$PYTHON is not a Python 3.11 or newer with its venv module"
    else
        say "needs Python 3.11 or newer with its venv module, and found none"
        say "Debian, Ubuntu: apt-get install python3 python3-venv; Fedora: dnf install python3"
        say "or name one: PYTHON=/path/to/python3 ${0}"
    fi
    return 2
}

# What a finished installation of lock $1 writes into its stamp: another lock, place or description of the package (the
# part of pyproject.toml that comes before the tools) is another line.
fingerprint() {
    { echo "$root"; cat "$root/requirements/$1.lock"; sed '/^\[tool\./,$d' "$root/pyproject.toml"; } | sha256sum | cut -d ' ' -f 1
}

is_installed() {
    [ ! -e "$mark" ] && [ -x "$venv/bin/python" ] && [ "$(cat "$venv/headrace-$1" 2>/dev/null)" = "$(fingerprint "$1")" ]
}

# Reads pip's own lines and says which package it is at, and what stops it.
show_progress() {
    local total=$1 count=0 line
    while IFS= read -r line; do
        case $line in
        "Collecting "*)
            count=$((count + 1))
            line=${line#Collecting }
            if [ -t 2 ]; then
                printf '\r\033[K  %d of about %d: %s' "$count" "$total" "${line%% *}" >&2
            elif [ $((count % 10)) = 0 ]; then
                printf '  %d of about %d\n' "$count" "$total" >&2
            fi
            ;;
        "Installing collected packages"*)
            [ ! -t 2 ] || printf '\r\033[K' >&2
            printf '  writing them to .venv\n' >&2
            ;;
        "WARNING: Retrying"* | ERROR*)
            printf '%s\n' "$line" >&2
            ;;
        esac
    done
}

give_up() {
    tail -n 15 "$1" >&2
    say "the installation failed; pip's own words are above and in $1. It starts anew next time"
    exit 1
}

install_lock() {
    local lock=$1 python system_python total log=$venv/pip.log
    # A mark is a dead installation's, since we hold the lock; a Python that fails was removed or upgraded under us.
    if [ -e "$mark" ] || { [ -e "$venv" ] && ! "$venv/bin/python" -c '' 2>/dev/null; }; then
        say ".venv is unfinished or broken; starting it anew"
        rm -rf "$venv"
    elif [ "$(cat "$venv/headrace-root" 2>/dev/null || echo "$root")" != "$root" ]; then
        say ".venv was made in another folder; starting it anew"
        rm -rf "$venv"
    fi
    python=$venv/bin/python
    if [ ! -e "$python" ]; then
        system_python=$(find_python)
        say "making .venv with $("$system_python" --version)"
        mkdir -p "$venv"
        touch "$mark"
        "$system_python" -m venv "$venv"
    fi
    touch "$mark"
    rm -f "$venv"/headrace-run "$venv"/headrace-dev
    echo "$root" >"$venv/headrace-root"

    total=$(grep -c '==' "$root/requirements/$lock.lock")
    say "installing $total locked packages; the first time takes a minute or two"
    "$python" -m pip install --require-hashes --only-binary :all: --progress-bar off \
        --requirement "$root/requirements/$lock.lock" 2>&1 | tee "$log" | show_progress "$total" || give_up "$log"
    "$python" -m pip install --no-deps --no-build-isolation --editable "$root" >"$log" 2>&1 || give_up "$log"

    fingerprint "$lock" >"$venv/headrace-$lock"
    # dev.lock holds all of run.lock at the same versions (tests/test_locks.py).
    [ "$lock" = run ] || fingerprint run >"$venv/headrace-run"
    rm -f "$mark"
}

ensure_venv() {
    is_installed "$1" && return
    (
        # Two scripts started together: the second waits here, then finds the work done.
        flock --nonblock 9 || { say "waiting for another installation in this folder"; flock 9; }
        is_installed "$1" || install_lock "$1"
    ) 9<"$root/scripts/venv.sh"
}
